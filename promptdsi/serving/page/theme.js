// Light or dark: the system decides until the reader does; the choice is remembered in this browser.
// A plain script in the head, so that the page is never painted in the wrong theme first.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => {
    try { return localStorage.getItem("promptdsi-theme"); } catch { return null; } // storage may be forbidden
  };
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const changed = () => {
      button.setAttribute("aria-label", isDark() ? "Use the light theme" : "Use the dark theme");
      button.title = button.getAttribute("aria-label");
    };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("promptdsi-theme", root.dataset.theme); } catch { /* then for this page only */ }
      changed();
    });
    system.addEventListener("change", changed);
    changed();
  });
})();
