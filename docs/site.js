// Figures follow the palette that was chosen on the page, which need not be the system's. Opened as a file, the logo leads to
// the first page, not to its folder.
const follow = () => {
  const dark = document.body.dataset.mdColorScheme === "slate"
  for (const source of document.querySelectorAll("picture > source")) source.media = dark ? "all" : "not all"
}
new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-md-color-scheme"] })
follow()

if (location.protocol === "file:") {
  for (const logo of document.querySelectorAll("a.md-logo")) logo.href = new URL("index.html", logo.href)
}
