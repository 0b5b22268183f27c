// The buttons of Models & endpoints without a new page: what changed comes by the page's stream.

const models = document.getElementById("models");
const problem = document.getElementById("problem");

function tell(text) {
  problem.textContent = text;
  problem.hidden = text === "";
}

async function act(form, verb) {
  const asked = { endpoint: form.elements.endpoint.value };
  if (verb === "pause" || verb === "drain") asked.note = form.elements.note.value;
  const answer = await fetch(form.dataset.acts + verb, {
    method: "POST",
    headers: { "content-type": "application/json", "x-csrf-token": form.elements.csrf.value },
    body: JSON.stringify(asked),
  });
  if (!answer.ok) tell((await answer.json()).error.message);
}

models.addEventListener("submit", async (event) => {
  const form = event.target;
  const button = event.submitter;
  if (!form.matches("[data-acts]") || !button) return;
  event.preventDefault();
  tell("");
  button.disabled = true;
  try {
    await act(form, button.value);
  } catch (error) {
    tell(String(error));
  } finally {
    button.disabled = false;
  }
});
