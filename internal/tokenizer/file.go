package tokenizer

import (
	"fmt"
	"strconv"
	"strings"
)

// A file is what a tokenizer.json says, before anything is built from it.
type file struct {
	added         []addedToken
	normalizer    *component
	preTokenizer  *component
	postProcessor *component
	decoder       *component
	model         *model
}

// A component is a normalizer, pre-tokenizer, post-processor or decoder as the file spells it: the union of
// the fields of the kinds that are supported. Other fields are not read; other kinds are refused by build.
type component struct {
	path, kind string
	parts      []component // of a Sequence

	pattern          *pattern // Replace, Split
	content          string   // Replace, Strip (decoder)
	prepend          string   // Prepend
	behavior         string   // Split
	invert           bool     // Split
	addPrefixSpace   bool     // ByteLevel
	useRegex         bool     // ByteLevel
	individualDigits bool     // Digits
	start, stop      int      // Strip (decoder): how many characters at most
	stripLeft        bool     // Strip (normalizer)
	stripRight       bool
	single           []templatePart     // TemplateProcessing
	specials         map[string][]int32 // TemplateProcessing
}

// A pattern is a literal text or a regular expression.
type pattern struct {
	text  string
	regex bool
}

// A templatePart is a special token, or the text (sequence A) when special is empty.
type templatePart struct{ special, sequence string }

// readFile reads a whole tokenizer.json.
func readFile(data string) (*file, error) {
	if strings.HasPrefix(data, "version https://git-lfs") {
		return nil, fmt.Errorf("want JSON, found a Git LFS pointer of %d bytes: fetch the file it stands for", len(data))
	}
	r := &reader{data: strings.TrimPrefix(data, "\ufeff")}
	f := &file{}
	r.object(func(key string) {
		switch key {
		case "added_tokens":
			f.added = r.addedTokens()
		case "normalizer":
			f.normalizer = r.optionalComponent()
		case "pre_tokenizer":
			f.preTokenizer = r.optionalComponent()
		case "post_processor":
			f.postProcessor = r.optionalComponent()
		case "decoder":
			f.decoder = r.optionalComponent()
		case "model":
			f.model = r.model()
		default:
			r.skip()
		}
	})
	if r.err == nil && r.next() != 0 {
		r.want("the end of the file")
	}
	if r.err == nil && f.model == nil {
		r.fail("model is missing")
	}
	return f, r.err
}

func (r *reader) addedTokens() (tokens []addedToken) {
	if r.null() {
		return nil
	}
	r.array(func(int) {
		a := addedToken{id: -1}
		r.object(func(key string) {
			switch key {
			case "id":
				a.id = r.int()
			case "content":
				a.content = r.string()
			case "single_word":
				a.singleWord = r.bool()
			case "lstrip":
				a.lstrip = r.bool()
			case "rstrip":
				a.rstrip = r.bool()
			case "normalized":
				a.normalized = r.bool()
			case "special":
				a.special = r.bool()
			default:
				r.skip()
			}
		})
		if a.id < 0 {
			r.fail("id is missing")
		}
		if a.content == "" {
			r.fail("content is missing or empty")
		}
		tokens = append(tokens, a)
	})
	return tokens
}

func (r *reader) optionalComponent() *component {
	if r.null() {
		return nil
	}
	c := r.component()
	return &c
}

func (r *reader) component() component {
	c := component{path: r.where(), useRegex: true}
	r.object(func(key string) {
		switch key {
		case "type":
			c.kind = r.string()
		case "normalizers", "pretokenizers", "processors", "decoders":
			r.array(func(int) { c.parts = append(c.parts, r.component()) })
		case "pattern":
			c.pattern = r.pattern()
		case "content":
			c.content = r.string()
		case "prepend":
			c.prepend = r.string()
		case "behavior":
			c.behavior = r.string()
		case "invert":
			c.invert = r.bool()
		case "add_prefix_space":
			c.addPrefixSpace = r.bool()
		case "use_regex":
			c.useRegex = r.bool()
		case "individual_digits":
			c.individualDigits = r.bool()
		case "strip_left":
			c.stripLeft = r.bool()
		case "strip_right":
			c.stripRight = r.bool()
		case "start":
			c.start = int(r.int())
		case "stop":
			c.stop = int(r.int())
		case "single":
			r.array(func(int) { c.single = append(c.single, r.templatePart()) })
		case "special_tokens":
			c.specials = r.templateSpecials()
		default:
			r.skip()
		}
	})
	if c.kind == "" {
		r.fail("type is missing")
	}
	return c
}

// pattern reads {"String": text} or {"Regex": expression}.
func (r *reader) pattern() *pattern {
	var p *pattern
	r.object(func(key string) {
		switch key {
		case "String", "Regex":
			p = &pattern{text: r.string(), regex: key == "Regex"}
		default:
			r.fail("want String or Regex")
		}
	})
	if p == nil {
		r.fail("want String or Regex")
	}
	return p
}

// templatePart reads {"SpecialToken": {"id": name, …}} or {"Sequence": {"id": "A", …}}.
func (r *reader) templatePart() (p templatePart) {
	r.object(func(kind string) {
		r.object(func(key string) {
			switch {
			case key != "id":
				r.skip()
			case kind == "SpecialToken":
				p.special = r.string()
			case kind == "Sequence":
				p.sequence = r.string()
			default:
				r.fail("want SpecialToken or Sequence")
			}
		})
	})
	return p
}

func (r *reader) templateSpecials() map[string][]int32 {
	specials := map[string][]int32{}
	r.object(func(key string) {
		name := strings.Clone(key)
		specials[name] = nil
		r.object(func(key string) {
			if key != "ids" {
				r.skip()
				return
			}
			r.array(func(int) { specials[name] = append(specials[name], r.int()) })
		})
	})
	return specials
}

// model reads a BPE model. Merges name their tokens by text, so they are read once the vocabulary is known.
func (r *reader) model() *model {
	m := &model{unk: -1}
	var mergesAt int
	var unk *string
	kind := "BPE" // files of old carry no type
	r.object(func(key string) {
		switch key {
		case "type":
			kind = r.string()
			if kind != "BPE" {
				r.fail("want BPE, found %s", kind)
			}
		case "vocab":
			if m.vocabulary != nil { // merges may have been read by it
				r.fail("is there twice")
			}
			m.vocabulary = r.vocabulary()
		case "merges":
			r.next()
			if mergesAt = r.pos; m.vocabulary != nil {
				m.merges = r.merges(m.vocabulary)
			} else {
				r.skip()
			}
		case "unk_token":
			if !r.null() {
				s := r.string()
				unk = &s
			}
		case "fuse_unk":
			m.fuseUnk = r.flag()
		case "byte_fallback":
			m.byteFallback = r.flag()
		case "ignore_merges":
			m.ignoreMerges = r.flag()
		case "dropout":
			if !r.null() {
				s := r.number()
				if p, err := strconv.ParseFloat(s, 64); err != nil || p != 0 {
					r.fail("want null or 0, found %s: a random tokenization cannot be compared", s)
				}
			}
		case "continuing_subword_prefix", "end_of_word_suffix":
			if !r.null() {
				if s := r.string(); s != "" {
					r.fail("want none, found %q: not supported", s)
				}
			}
		default:
			r.skip()
		}
	})
	switch {
	case r.err != nil:
		return m
	case m.vocabulary == nil:
		r.fail("vocab is missing")
	case mergesAt == 0:
		r.fail("merges is missing")
	case m.merges.starts == nil:
		end := r.pos
		r.pos = mergesAt
		r.enter(segment{key: "merges", index: -1})
		m.merges = r.merges(m.vocabulary)
		r.leave()
		r.pos = end
	}
	if r.err != nil {
		return m
	}
	m.setUnknown(unk)
	m.setByteTokens()
	return m
}

// flag reads a boolean that may be null, which means false.
func (r *reader) flag() bool { return !r.null() && r.bool() }
