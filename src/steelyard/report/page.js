"use strict";
(() => {
  const said = document.getElementById("said");
  const tell = (message) => {
    said.textContent = message;
    setTimeout(() => { said.textContent = ""; }, 2000);
  };
  const cells = (row) => [...row.cells].map((cell) => cell.textContent.replace(/[\t\n]+/g, " ")).join("\t");
  const select = (table) => {
    const range = document.createRange();
    range.selectNode(table);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    tell("Selected: press Ctrl-C");
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const table = button.closest(".table").querySelector("table");
    try {
      await navigator.clipboard.writeText([...table.rows].map(cells).join("\n"));
      tell("Copied");
    } catch {
      select(table);
    }
  });
})();
