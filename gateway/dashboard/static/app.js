// Keys that work on every page: g and a letter goes to a page, / to the filter, ? shows them all.

const KEY_WAIT_MS = 1000;
const dialog = document.getElementById("shortcuts");
let goingSince = -Infinity;

function isTyping(target) {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input, textarea, select"));
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (performance.now() - goingSince < KEY_WAIT_MS) {
    goingSince = -Infinity;
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  if (event.key === "g") {
    goingSince = performance.now();
  } else if (event.key === "?" && dialog && !dialog.open) {
    event.preventDefault();
    dialog.showModal();
  } else if (event.key === "/") {
    const field = document.querySelector("[data-filter]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
}

document.addEventListener("keydown", onKey);
document.getElementById("open-shortcuts")?.addEventListener("click", () => dialog?.showModal());

// A field with data-filter="ID" hides those children of ID whose text does not hold what it says.
for (const field of document.querySelectorAll("[data-filter]")) {
  const rows = document.getElementById(field.dataset.filter);
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    for (const row of rows.children) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}

// A button with data-copy="ID" copies what that element says; without a clipboard there is no button.
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent.trim());
    button.textContent = button.dataset.copied;
  });
}
