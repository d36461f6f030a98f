package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// A splitter cuts a text into words, which the model will not merge across, and calls emit for each.
type splitter func(s string, emit func(string))

func (c *component) splitter() (splitter, error) {
	switch c.kind {
	case "Sequence":
		var all []splitter
		for i := range c.parts {
			s, err := c.parts[i].splitter()
			if err != nil {
				return nil, err
			}
			all = append(all, s)
		}
		return func(s string, emit func(string)) { splitAll(all, s, emit) }, nil
	case "Split":
		return c.patternSplitter()
	case "Digits":
		how := "Contiguous"
		if c.individualDigits {
			how = "Isolated"
		}
		return behaviors[how].splitter(findRunes(unicode.IsNumber), false), nil
	case "ByteLevel":
		return c.byteLevel, nil
	}
	return nil, at(c.path, "pre-tokenizer %q is not supported (Sequence, Split, Digits, ByteLevel are)", c.kind)
}

func splitAll(all []splitter, s string, emit func(string)) {
	if len(all) == 0 {
		emit(s)
		return
	}
	all[0](s, func(w string) { splitAll(all[1:], w, emit) })
}

// byteLevel spells each byte of the text as one printable character, after cutting it by GPT-2's pattern.
func (c *component) byteLevel(s string, emit func(string)) {
	if c.addPrefixSpace && !strings.HasPrefix(s, " ") {
		s = " " + s
	}
	if c.useRegex {
		scan(s, gpt2Word, func(w string) { emit(toByteLevel(w)) })
	} else {
		emit(toByteLevel(s))
	}
}

func (c *component) patternSplitter() (splitter, error) {
	behavior, ok := behaviors[c.behavior]
	if !ok {
		return nil, at(c.path+".behavior", "want Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous, found %q", c.behavior)
	}
	if c.pattern != nil && c.pattern.regex && c.behavior == "Isolated" && !c.invert {
		if word := knownPatterns[c.pattern.text]; word != nil {
			return func(s string, emit func(string)) { scan(s, word, emit) }, nil
		}
	}
	find, err := c.finder()
	if err != nil {
		return nil, err
	}
	return behavior.splitter(find, c.invert), nil
}

// A finder calls match for each match of a pattern in s, from left to right, with its byte range.
type finder func(s string, match func(start, end int))

func (c *component) finder() (finder, error) {
	if c.pattern == nil {
		return nil, at(c.path, "pattern is missing")
	}
	if !c.pattern.regex {
		return findText(c.pattern.text), nil
	}
	// The patterns are Oniguruma's. Of what tokenizers use, only set intersection means something else here.
	if strings.Contains(c.pattern.text, "&&") {
		return nil, at(c.path+".pattern.Regex", "set intersection (&&) is not supported in %q", c.pattern.text)
	}
	re, err := regexp2.Compile(c.pattern.text, regexp2.None)
	if err != nil {
		return nil, at(c.path+".pattern.Regex", "%v", err)
	}
	return findRegex(re), nil
}

func findText(text string) finder {
	return func(s string, match func(start, end int)) {
		if text == "" {
			return
		}
		for from := 0; ; {
			i := strings.Index(s[from:], text)
			if i < 0 {
				return
			}
			match(from+i, from+i+len(text))
			from += i + len(text)
		}
	}
}

func findRunes(is func(rune) bool) finder {
	return func(s string, match func(start, end int)) {
		for i, r := range s {
			if is(r) {
				match(i, i+utf8.RuneLen(r))
			}
		}
	}
}

func findRegex(re *regexp2.Regexp) finder {
	return func(s string, match func(start, end int)) {
		chars := []rune(s)
		char, offset := 0, 0 // chars[char] begins at byte offset
		advance := func(to int) int {
			for ; char < to; char++ {
				offset += utf8.RuneLen(chars[char])
			}
			return offset
		}
		// No timeout is set, so these calls do not fail.
		for m, _ := re.FindRunesMatch(chars); m != nil; m, _ = re.FindNextMatch(m) {
			start := advance(m.Index)
			match(start, advance(m.Index+m.Length))
		}
	}
}

// A behavior says to which word a match belongs: whether a stretch joins the one before it (given whether this
// and the previous one are matches), or is left out.
type behavior struct {
	joins    func(isMatch, previousIsMatch bool) bool
	removed  bool
	backward bool // look at the stretches from right to left
}

var behaviors = map[string]behavior{
	"Removed":            {joins: func(bool, bool) bool { return false }, removed: true},
	"Isolated":           {joins: func(bool, bool) bool { return false }},
	"MergedWithPrevious": {joins: func(is, previous bool) bool { return is && !previous }},
	"MergedWithNext":     {joins: func(is, previous bool) bool { return is && !previous }, backward: true},
	"Contiguous":         {joins: func(is, previous bool) bool { return is == previous }},
}

// splitter cuts by the matches of find, or with invert by what lies between them.
func (b behavior) splitter(find finder, invert bool) splitter {
	type stretch struct {
		start, end int
		match      bool
	}
	return func(s string, emit func(string)) {
		var all []stretch
		from := 0
		between := func(to int) {
			if from < to {
				all = append(all, stretch{from, to, invert})
			}
			from = to
		}
		find(s, func(start, end int) {
			between(start)
			all = append(all, stretch{start, end, !invert})
			from = end
		})
		between(len(s))

		order := make([]stretch, 0, len(all))
		previous := false
		for i := range all {
			x := all[i]
			if b.backward {
				x = all[len(all)-1-i]
			}
			if last := len(order) - 1; last >= 0 && b.joins(x.match, previous) {
				order[last].start = min(order[last].start, x.start)
				order[last].end = max(order[last].end, x.end)
			} else {
				order = append(order, x)
			}
			previous = x.match
		}
		for i := range order {
			x := order[i]
			if b.backward {
				x = order[len(order)-1-i]
			}
			if x.start < x.end && !(b.removed && x.match) {
				emit(s[x.start:x.end])
			}
		}
	}
}
