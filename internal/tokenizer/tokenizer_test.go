package tokenizer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
	"golang.org/x/text/unicode/norm"
)

// tiny is a byte-level tokenizer with room for other components: ids 0 to 3, 4 is <s>.
const tiny = `{"added_tokens": [{"id": 4, "content": "<s>", "special": true}], COMPONENTS
	"model": {"vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": ["a b"]}}`

func with(components string) string { return strings.Replace(tiny, "COMPONENTS", components, 1) }

func TestParseErrors(t *testing.T) {
	model := func(fields string) string { return `{"model": {` + fields + `}}` }
	added := func(fields string) string {
		return `{"added_tokens": [{` + fields + `}], "model": {"vocab": {"a": 0}, "merges": []}}`
	}
	for _, c := range []struct{ json, want string }{
		{``, `want an object, found the end of the file at byte 0`},
		{`[]`, `want an object, found an array at byte 0`},
		{"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", `want JSON, found a Git LFS pointer of 63 bytes: fetch the file it stands for`},
		{`{}`, `model is missing`},
		{`{"model": 1}`, `model: want an object, found a number at byte 10`},
		{`{"model": {}} x`, `model: vocab is missing`},
		{with(``) + "x", `want the end of the file, found 'x' at byte 141`},
		{`{"version": nil}`, `version: want a value, found 'n' at byte 12`},
		{`{"version" 1}`, `want ':', found a number at byte 11`},
		{`{"version": 1 "a"`, `want ',' or '}', found a string at byte 14`},
		{`{"version": 1,}`, `want a string, found '}' at byte 14`},
		{`{"version": [1}`, `version: want ',' or ']', found '}' at byte 14`},
		{`{"version": 1.2.3}`, `version: bad number 1.2.3`},
		{`{"version": "1`, `version: string at byte 12 never ends`},
		{"{\"version\": \"a\nb\"}", `version: control character 0x0a inside a string at byte 14`},
		{"{\"version\": \"a\xffb\"}", `version: string before byte 17 is not UTF-8`},
		{`{"version": "\x"}`, `version: bad escape in the string before byte 16`},
		{`{"version": ` + strings.Repeat("[", 1000), `values nest deeper than 100 at byte 112`},

		{model(`"type": "WordPiece"`), `model.type: want BPE, found WordPiece`},
		{model(`"dropout": 0.1`), `model.dropout: want null or 0, found 0.1: a random tokenization cannot be compared`},
		{model(`"end_of_word_suffix": "</w>"`), `model.end_of_word_suffix: want none, found "</w>": not supported`},
		{model(`"continuing_subword_prefix": "##"`), `model.continuing_subword_prefix: want none, found "##": not supported`},
		{model(`"fuse_unk": 1`), `model.fuse_unk: want true or false, found a number at byte 23`},
		{model(`"vocab": {"a": 0}`), `model: merges is missing`},
		{model(`"vocab": ["a"]`), `model.vocab: want an object, found an array at byte 20`},
		{model(`"vocab": {"a": "0"}`), `model.vocab.a: want a number, found a string at byte 26`},
		{model(`"vocab": {"A": -1}`), `model.vocab["A"]: want an integer from 0 to 2147483647, found -1`},
		{model(`"vocab": {"Ġ": 2147483648}`), `model.vocab["Ġ"]: want an integer from 0 to 2147483647, found 2147483648`},
		{model(`"vocab": {"a": 1.0}`), `model.vocab.a: want an integer from 0 to 2147483647, found 1.0`},
		{model(`"vocab": {"a": 0, "b": 0}`), `model.vocab.b: id 0 belongs to "a" already`},
		{model(`"vocab": {"a": 0, "a": 1, "b": 0}`), `model.vocab.b: id 0 belongs to "a" already`},
		{model(`"vocab": {"a": 0}, "merges": ["x a", "a", 7]`), `model.merges[0]: token "xa" is not in model.vocab`},
		{model(`"vocab": {"a": 0, "a": 1}`), `model.vocab.a: has id 1, but id 0 already`},
		{model(`"vocab": {"a": 0, "b": 1}, "merges": ["a b"]`), `model.merges[0]: token "ab" is not in model.vocab`},
		{model(`"merges": [["x", "a"]], "vocab": {"a": 0}`), `model.merges[0]: token "xa" is not in model.vocab`},
		{model(`"vocab": {"a": 0, "aa": 1}, "merges": ["a a", "a a a"]`), `model.merges[1]: want two tokens with a space between, found "a a a"`},
		{model(`"vocab": {"a": 0, "é": 1}, "merges": [["` + "\xc3" + `", "` + "\xa9" + `"]]`), `model.merges[0]: "\xc3" and "\xa9" are not UTF-8`},
		{model(`"vocab": {"a": 0}, "merges": [["a", "` + "\xa9" + `"]]`), `model.merges[0]: token "a\xa9" is not in model.vocab`},
		{model(`"vocab": {"a": 0}, "merges": [], "vocab": {"b": 0, "a": 1}`), `model.vocab: is there twice`},
		{model(`"vocab": {"a": 0}, "merges": [["a"]]`), `model.merges[0]: want two tokens, found 1`},
		{model(`"vocab": {"a": 0}, "merges": [["a", 1]]`), `model.merges[0][1]: want a string, found a number at byte 47`},
		{model(`"vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"`), `model.unk_token: "<unk>" is not in the vocabulary`},

		{added(`"content": "b"`), `added_tokens[0]: id is missing`},
		{added(`"id": 1`), `added_tokens[0]: content is missing or empty`},
		{added(`"id": true, "content": "b"`), `added_tokens[0].id: want a number, found a boolean at byte 25`},
		{added(`"id": 1, "content": "a"`), `added_tokens[0]: "a" has id 1, but id 0 in model.vocab`},
		{added(`"id": 0, "content": "b"`), `added_tokens[0]: "b" has id 0, which is "a" in model.vocab`},
		{added(`"id": 1, "content": "b"}, {"id": 1, "content": "c"`), `added_tokens[1]: "c" has id 1, which is "b" already`},
		{added(`"id": 1, "content": "b"}, {"id": 2, "content": "b"`), `added_tokens[1]: "b" has id 2, but id 1 already`},

		{with(`"normalizer": {},`), `normalizer: type is missing`},
		{with(`"normalizer": {"type": "Nmt"},`), `normalizer: normalizer "Nmt" is not supported (Sequence, NFC, NFD, NFKC, NFKD, Replace, Prepend, Strip are)`},
		{with(`"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace"}]},`), `normalizer.normalizers[1]: pattern is missing`},
		{with(`"normalizer": {"type": "Replace", "pattern": {}},`), `normalizer.pattern: want String or Regex`},
		{with(`"normalizer": {"type": "Replace", "pattern": {"Glob": "*"}},`), `normalizer.pattern["Glob"]: want String or Regex`},
		{with(`"pre_tokenizer": {"type": "Metaspace"},`), `pre_tokenizer: pre-tokenizer "Metaspace" is not supported (Sequence, Split, Digits, ByteLevel are)`},
		{with(`"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "isolated"},`), `pre_tokenizer.behavior: want Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous, found "isolated"`},
		{with(`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"},`), "pre_tokenizer.pattern.Regex: error parsing regexp: missing closing ) in `(`"},
		{with(`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated"},`), `pre_tokenizer.pattern.Regex: set intersection (&&) is not supported in "[a&&b]"`},
		{with(`"post_processor": {"type": "BertProcessing"},`), `post_processor: post-processor "BertProcessing" is not supported (Sequence, ByteLevel, TemplateProcessing are)`},
		{with(`"post_processor": {"type": "TemplateProcessing", "single": []},`), `post_processor.single: want sequence A once, found none`},
		{with(`"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]},`), `post_processor.single[0]: want sequence A once, found sequence "B"`},
		{with(`"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]},`), `post_processor.single[0]: "<s>" has no ids in special_tokens`},
		{with(`"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [9]}}},`), `post_processor: adds id 9, which is not in the vocabulary`},
		{with(`"decoder": {"type": "WordPiece"},`), `decoder: decoder "WordPiece" is not supported (Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip are)`},
		{with(`"decoder": {"type": "Strip", "content": "ab"},`), `decoder.content: want one character, found "ab"`},
		{with(`"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]},`), `decoder.decoders[1].stop: want 0 after the tokens have been fused, found 1: not supported`},
		{with(`"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},`), `decoder.decoders[1]: ByteFallback after the tokens have been fused is not supported`},
	} {
		_, err := Parse("t.json", c.json)
		if err == nil || err.Error() != "t.json: "+c.want {
			t.Errorf("%.200s\n got %v\nwant t.json: %s", c.json, err, c.want)
		}
	}
}

func parse(t *testing.T, json string) *Tokenizer {
	t.Helper()
	tok, err := Parse("tokenizer.json", json)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tokenizer.json")
	if _, err := Load(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory without the file: %v", err)
	}
	if err := os.WriteFile(file, []byte(with("")), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, file} {
		if tok, err := Load(path); err != nil || tok.VocabSize() != 5 {
			t.Errorf("Load(%s): %v", path, err)
		}
	}
	if err := os.WriteFile(file, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || err.Error() != file+": want a string, found the end of the file at byte 1" {
		t.Errorf("a torn file: %v", err)
	}
}

func TestVocabulary(t *testing.T) {
	tok := parse(t, with(`"post_processor": {"type": "TemplateProcessing", "special_tokens": {"<s>": {"ids": [4]}},
		"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]},`))
	for id, want := range []string{"a", "b", "ab", "Ġ", "<s>"} {
		if got, ok := tok.Token(id); got != want || !ok {
			t.Errorf("Token(%d) = %q, %v, want %q", id, got, ok, want)
		}
		if got, ok := tok.ID(want); got != id || !ok {
			t.Errorf("ID(%q) = %d, %v, want %d", want, got, ok, id)
		}
		if got := tok.IsSpecial(id); got != (id == 4) {
			t.Errorf("IsSpecial(%d) = %v", id, got)
		}
	}
	if _, ok := tok.ID("c"); ok {
		t.Error(`ID("c") is there`)
	}
	for _, id := range []int{-1, 5, 1 << 32, -1 << 63, 1<<32 + 4} {
		if token, ok := tok.Token(id); ok || tok.IsSpecial(id) {
			t.Errorf("Token(%d) = %q, IsSpecial %v", id, token, tok.IsSpecial(id))
		}
	}
	if got, want := tok.Decode([]int{2, 7, -1}, true), "ab <unknown id 7> <unknown id -1>"; got != want {
		t.Errorf("ids out of range decode to %q, want %q", got, want)
	}
	if id, ok := tok.AddsBOS(); id != 4 || !ok {
		t.Errorf("AddsBOS() = %d, %v, want 4", id, ok)
	}
	if _, ok := parse(t, with("")).AddsBOS(); ok {
		t.Error("AddsBOS() without a post-processor")
	}
	if got := tok.Encode("ab\xffa<s>", true); !slices.Equal(got, []int{4, 2, 0, 4}) {
		t.Errorf("unknown bytes and a spelled-out token: %v", got)
	}
}

// TestLongWord would not end if merging took quadratic time: the word is a million characters.
func TestLongWord(t *testing.T) {
	tok, err := Load("testdata/reduced_gemini.json")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("The cat's multiple ", 1<<20/19)
	if got := tok.Decode(tok.Encode(text, false), false); got != text {
		t.Error("a long text does not come back")
	}
}

func TestValid(t *testing.T) {
	for _, c := range []struct{ in, final, text, rest string }{
		{"a\xe2\x82\xacb", "a€b", "a€b", ""},
		{"\xe2\x82", "\ufffd", "", "\xe2\x82"},
		{"\xe2\x82a", "\ufffda", "\ufffda", ""},
		{"\xe2\xe2\x82\xac", "\ufffd€", "\ufffd€", ""},
		{"\xf0\x9f\xa6", "\ufffd", "", "\xf0\x9f\xa6"},
		{"\xf0\x80\x80", "\ufffd\ufffd\ufffd", "\ufffd\ufffd\ufffd", ""},
		{"\xed\xa0\x80", "\ufffd\ufffd\ufffd", "\ufffd\ufffd\ufffd", ""},
		{"\xf4\x90", "\ufffd\ufffd", "\ufffd\ufffd", ""},
		{"\xff\xc0\x80", "\ufffd\ufffd\ufffd", "\ufffd\ufffd\ufffd", ""},
		{"\xf0\x90\x80x", "\ufffdx", "\ufffdx", ""},
		{"\ufffd\x80", "\ufffd\ufffd", "\ufffd\ufffd", ""},
	} {
		if got, _ := valid([]byte(c.in), true); got != c.final {
			t.Errorf("valid(%q, final) = %q, want %q", c.in, got, c.final)
		}
		if got, rest := valid([]byte(c.in), false); got != c.text || string(rest) != c.rest {
			t.Errorf("valid(%q) = %q, %q, want %q, %q", c.in, got, rest, c.text, c.rest)
		}
	}
}

// TestStream shows what is held back, and until when.
func TestStream(t *testing.T) {
	stream := func(family string, ids ...int) (pieces []string) {
		tok, err := Load("testdata/reduced_" + family + ".json")
		if err != nil {
			t.Fatal(err)
		}
		s := tok.NewStream(true)
		for _, id := range ids {
			pieces = append(pieces, s.Push(id))
		}
		return append(pieces, s.Flush())
	}
	const bos, hello, newline = 2, 4521, 108 // of Gemma
	byteID := func(b int) int { return 217 + b }
	for _, c := range []struct {
		what      string
		got, want []string
	}{
		{"byte tokens wait for the end of their run", stream("gemini", bos, hello, byteID(0xc3), byteID(0xa9), newline),
			[]string{"", "Hello", "", "", "é\n", ""}},
		{"a run that is not UTF-8", stream("gemini", byteID(0xc3), byteID('x'), hello), []string{"", "", "\ufffd\ufffdHello", ""}},
		{"a run at the end", stream("gemini", byteID('x')), []string{"", "x"}},
		{"byte-level characters come when whole", stream("qwen3", encodeBytes("qwen3", t, "é\xe2\x82a\xe2")...),
			[]string{"", "é", "", "", "\ufffda", "", "\ufffd"}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: got %q, want %q", c.what, c.got, c.want)
		}
	}
}

// encodeBytes gives the id of each byte by itself.
func encodeBytes(family string, t *testing.T, text string) (ids []int) {
	tok, err := Load("testdata/reduced_" + family + ".json")
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(text) {
		id, ok := tok.ID(toByteLevel(text[i : i+1]))
		if !ok {
			t.Fatalf("%s has no token for byte %#x", family, text[i])
		}
		ids = append(ids, id)
	}
	return ids
}

// TestScanners holds the hand-written scanners to the patterns they stand for.
func TestScanners(t *testing.T) {
	encodings, _ := oracle(t, "qwen3")
	for pattern, word := range knownPatterns {
		find := findRegex(regexp2.MustCompile(pattern, regexp2.None))
		for _, e := range encodings {
			var got, want []string
			scan(e.Text, word, func(w string) { got = append(got, w) })
			find(e.Text, func(start, end int) { want = append(want, e.Text[start:end]) })
			if strings.Contains(e.Text, "'ſ") {
				continue // regexp2 does not know ſ as a form of s; testdata/cases.json holds the scanner to it
			}
			if !slices.Equal(got, want) {
				t.Errorf("%.20s… cuts %q\n got %q\nwant %q", pattern, e.Text, got, want)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(with(``)))
	f.Add([]byte(with(`"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "Ġ"}]},`)))
	f.Add([]byte(with(`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a|b"}, "behavior": "MergedWithNext", "invert": true},`)))
	f.Add([]byte(with(`"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": "a", "start": 1, "stop": 0}]},`)))
	f.Add([]byte(with(`"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"x": {"ids": [4]}}},`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Parse("f", string(data))
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("the error has several lines: %q", err)
			}
			return
		}
		if strings.Contains(string(data), "Regex") {
			return // matching may take as long as its author wished
		}
		checkStream(t, tok, tok.Encode("ab <s>\xff e\u0301", true))
	})
}

// checkStream holds a stream to Decode, and its pieces to UTF-8.
func checkStream(t *testing.T, tok *Tokenizer, ids []int) {
	t.Helper()
	s := tok.NewStream(false)
	text := ""
	for i := range len(ids) + 1 {
		piece := ""
		if i < len(ids) {
			piece = s.Push(ids[i])
		} else {
			piece = s.Flush()
		}
		if !utf8.ValidString(piece) {
			t.Errorf("%v: piece %d is %q", ids, i, piece)
		}
		text += piece
	}
	if want := tok.Decode(ids, false); text != want {
		t.Errorf("%v: the stream gives %q, Decode %q", ids, text, want)
	}
}

func FuzzEncode(f *testing.F) {
	var tokenizers []*Tokenizer
	for _, family := range families {
		tok, err := Load("testdata/reduced_" + family + ".json")
		if err != nil {
			f.Fatal(err)
		}
		tokenizers = append(tokenizers, tok)
	}
	for _, text := range []string{"", "Hello, world!", "I'LL 'ſ", "e\u0301\u0301<bos>▁ ", "\xff\xe2\x82🦊", "  \r\n\n 123"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, _ := valid([]byte(text), true)
		for i, tok := range tokenizers {
			ids := tok.Encode(text, false)
			checkStream(t, tok, ids)
			want := want
			switch families[i] {
			case "gemini", "gemma3": // spaces and U+2581 become one
				want = strings.ReplaceAll(want, "▁", " ")
			case "qwen3": // composes characters, but not across added tokens
				if strings.Contains(want, "<") {
					continue
				}
				want = normalForm(norm.NFC, want)
			}
			if got := tok.Decode(ids, false); got != want {
				t.Errorf("%s: %q comes back as %q", families[i], text, got)
			}
		}
	})
}
