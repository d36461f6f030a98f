#!/usr/bin/env bash
# Makes docs/screenshots/*.png: the page of a match, a divergence and an inconclusive run, and the divergence on a dark phone.
# Needs Chromium, and pngquant to keep them small (apt-get install chromium pngquant). Run it from anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
  { printf 'screenshots: there is no chromium (apt-get install chromium)\n' >&2; exit 1; }
command -v pngquant >/dev/null || { printf 'screenshots: there is no pngquant (apt-get install pngquant)\n' >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p docs/screenshots
go build -o "$work/llmrun" ./cmd/llmrun

# page NAME EXIT ARGS...: what compare says goes to NAME.html.
page() {
  local name=$1 want=$2 code=0
  shift 2
  "$work/llmrun" compare --quiet --html "$work/$name.html" "$@" >/dev/null 2>&1 || code=$?
  [ "$code" = "$want" ] || { printf 'screenshots: %s: want exit %s, got %s\n' "$name" "$want" "$code" >&2; exit 1; }
}

# shoot PAGE PICTURE WIDTH HEIGHT [FLAG]
shoot() {
  local sandbox=
  [ "$(id -u)" != 0 ] || sandbox=--no-sandbox
  "$browser" --headless $sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" --allow-file-access-from-files \
    --screenshot="$work/$2.png" --window-size="$3,$4" ${5:-} "file://$work/$1.html" >/dev/null 2>&1
  pngquant --force --strip --nofs 128 --output "docs/screenshots/$2.png" "$work/$2.png"
  printf 'docs/screenshots/%s.png\n' "$2"
}

page match 0
page diverged 1 --fault gelu-unclamped
page inconclusive 3 --bos off --prompt Once

shoot match match 1040 1500
shoot diverged diverged 1040 2350
shoot inconclusive inconclusive 1040 1700

# A phone is narrower than a browser's window may be: three frames show one page from top to bottom.
{
  printf '<meta name="color-scheme" content="light dark"><body style="margin:0;display:flex;gap:12px;background:#666">\n'
  for part in 0 1 2; do
    printf '<div style="width:360px;height:1100px;overflow:hidden"><iframe src="diverged.html" style="border:0;width:360px;height:6000px;margin-top:-%dpx"></iframe></div>\n' \
      $((part * 1100))
  done
} >"$work/phone.html"
shoot phone phone-dark 1104 1100 --blink-settings=preferredColorScheme=0
