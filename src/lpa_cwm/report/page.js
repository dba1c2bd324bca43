"use strict";
// Click a head to sort by its column, again to turn the order; undefined values stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => head.addEventListener("click", () => {
    const first = head.dataset.ascending === "false" ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    const sign = order === "ascending" ? 1 : -1;
    const key = (row) => {
      const cell = row.cells[place];
      if (cell.dataset.value === undefined) return cell.textContent;
      return cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    const rows = [...body.rows].map((row) => [key(row), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    });
    body.append(...rows.map(([, row]) => row));
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
  }));
}
// Type to keep the rows that contain every word.
for (const input of document.querySelectorAll("input.filter")) {
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of input.parentElement.querySelectorAll("tbody tr")) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}
