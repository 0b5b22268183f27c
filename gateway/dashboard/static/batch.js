// A batch file goes up as the body of one request, straight from the disk, and its plan is shown next.

const form = document.getElementById("upload");
const problem = document.getElementById("upload-problem");
const uploading = document.getElementById("uploading");

function refuse(text) {
  problem.textContent = text;
  problem.hidden = false;
  uploading.hidden = true;
  form.querySelector("button.primary").disabled = false;
  problem.scrollIntoView({ block: "nearest" });
}

function messageOf(request) {
  try {
    return JSON.parse(request.responseText).error.message;
  } catch {
    return `${request.status} ${request.statusText}`;
  }
}

function send(file, wishes) {
  const bar = uploading.querySelector("progress");
  const request = new XMLHttpRequest();
  const query = new URLSearchParams({ key: wishes.get("key"), filename: file.name });
  request.open("POST", `${form.dataset.to}?${query}`);
  request.setRequestHeader("x-csrf-token", form.dataset.csrf);
  request.setRequestHeader("content-type", "application/jsonl");
  request.upload.addEventListener("progress", (event) => {
    // The last of it stays open until the lines are checked and written down.
    bar.value = event.total ? (0.98 * event.loaded) / event.total : 0;
  });
  request.addEventListener("load", () => {
    if (request.status !== 201) {
      refuse(messageOf(request));
      return;
    }
    const found = new URLSearchParams({ ...Object.fromEntries(wishes), file: JSON.parse(request.responseText).id });
    location.assign(`${form.dataset.next}?${found}`);
  });
  request.addEventListener("error", () => refuse(form.dataset.cut));
  request.addEventListener("abort", () => refuse(form.dataset.cut));
  document.getElementById("stop-upload").onclick = () => request.abort();
  bar.value = 0;
  problem.hidden = true;
  uploading.hidden = false;
  form.querySelector("button.primary").disabled = true;
  request.send(file);
}

form?.addEventListener("submit", (event) => {
  event.preventDefault();
  const [file] = document.getElementById("b-file").files;
  if (file.size > Number(form.dataset.bytesMax)) refuse(form.dataset.tooLarge);
  else send(file, new FormData(form));
});
