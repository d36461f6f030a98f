package tokenizer

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// A stage is one step from tokens to text. It is fed token by token and may hold text back until it is sure of it.
type stage interface {
	push(token string, emit func(string))
	flush(emit func(string))
}

// A decoder makes the stages of one stream, in order.
type decoder []func() stage

func (c *component) decoder() (decoder, error) {
	if c == nil {
		return decoder{func() stage { return &spaceStage{} }}, nil
	}
	var d decoder
	fused := false // the tokens have become one text
	return d, c.appendStages(&d, &fused)
}

func (c *component) appendStages(d *decoder, fused *bool) error {
	add := func(s func() stage) { *d = append(*d, s) }
	switch c.kind {
	case "Sequence":
		for i := range c.parts {
			if err := c.parts[i].appendStages(d, fused); err != nil {
				return err
			}
		}
	case "Fuse":
		*fused = true
	case "ByteLevel":
		if *fused {
			return at(c.path, "ByteLevel after the tokens have been fused is not supported")
		}
		*fused = true
		add(func() stage { return &byteLevelStage{} })
	case "ByteFallback":
		if *fused {
			return at(c.path, "ByteFallback after the tokens have been fused is not supported")
		}
		add(func() stage { return &byteFallbackStage{} })
	case "Replace":
		if *fused {
			return at(c.path, "Replace after the tokens have been fused is not supported")
		}
		replace, err := c.replacer()
		if err != nil {
			return err
		}
		add(func() stage { return replaceStage(replace) })
	case "Strip":
		if utf8.RuneCountInString(c.content) != 1 {
			return at(c.path+".content", "want one character, found %q", c.content)
		}
		switch {
		case !*fused:
			add(func() stage { return replaceStage(c.strip) })
		case c.stop > 0:
			return at(c.path+".stop", "want 0 after the tokens have been fused, found %d: not supported", c.stop)
		default:
			add(func() stage { return &stripStage{cut: c.content, left: c.start} })
		}
	default:
		return at(c.path, "decoder %q is not supported (Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip are)", c.kind)
	}
	return nil
}

// strip takes at most start characters from the front of a token, and stop from its end.
func (c *component) strip(token string) string {
	for i := 0; i < c.start && strings.HasPrefix(token, c.content); i++ {
		token = token[len(c.content):]
	}
	for i := 0; i < c.stop && strings.HasSuffix(token, c.content); i++ {
		token = token[:len(token)-len(c.content)]
	}
	return token
}

// spaceStage puts a space between tokens, which is what a file without a decoder asks for.
type spaceStage struct{ started bool }

func (s *spaceStage) push(token string, emit func(string)) {
	if s.started {
		token = " " + token
	}
	s.started = true
	emit(token)
}

func (s *spaceStage) flush(func(string)) {}

// replaceStage rewrites each token by itself.
type replaceStage func(string) string

func (s replaceStage) push(token string, emit func(string)) { emit(s(token)) }
func (s replaceStage) flush(func(string))                   {}

// stripStage takes at most left times the text cut from the front of the whole.
type stripStage struct {
	cut  string
	left int
}

func (s *stripStage) push(text string, emit func(string)) {
	for s.left > 0 && text != "" {
		rest, ok := strings.CutPrefix(text, s.cut)
		if !ok {
			s.left = 0
			break
		}
		text = rest
		s.left--
	}
	emit(text)
}

func (s *stripStage) flush(func(string)) {}

// byteLevelStage joins the bytes that the tokens spell and holds back an unfinished character.
type byteLevelStage struct{ held []byte }

func (s *byteLevelStage) push(token string, emit func(string)) {
	s.held = appendByteLevel(s.held, token)
	text, rest := valid(s.held, false)
	s.held = append(s.held[:0], rest...)
	emit(text)
}

func (s *byteLevelStage) flush(emit func(string)) {
	text, _ := valid(s.held, true)
	s.held = s.held[:0]
	emit(text)
}

// byteFallbackStage holds back a run of byte tokens until it ends: only if all of it is UTF-8 is it
// text, else each of its bytes becomes one U+FFFD.
type byteFallbackStage struct{ held []byte }

func (s *byteFallbackStage) push(token string, emit func(string)) {
	if b, ok := byteToken(token); ok {
		s.held = append(s.held, b)
		return
	}
	s.flush(emit)
	emit(token)
}

func (s *byteFallbackStage) flush(emit func(string)) {
	if len(s.held) == 0 {
		return
	}
	if utf8.Valid(s.held) {
		emit(string(s.held))
	} else {
		emit(strings.Repeat("\ufffd", len(s.held)))
	}
	s.held = s.held[:0]
}

// byteToken reads tokens such as <0x0A>.
func byteToken(token string) (byte, bool) {
	if len(token) != 6 || !strings.HasPrefix(token, "<0x") || token[5] != '>' {
		return 0, false
	}
	n, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(n), err == nil
}

// A Stream decodes ids as they come. What Push and Flush return, put together, is what Decode returns for
// all the ids at once, and each piece is valid UTF-8.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	stages      []stage
	out         strings.Builder
}

// NewStream returns an empty stream. With skipSpecial, special tokens leave no text.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skipSpecial: skipSpecial}
	for _, stage := range t.decoder {
		s.stages = append(s.stages, stage())
	}
	return s
}

// Push takes the next id and returns the text that has become certain, which may be empty: an unfinished
// character, or a run of byte tokens, is held back.
func (s *Stream) Push(id int) string {
	token, ok := s.t.Token(id)
	if !ok {
		token = placeholder(id)
	} else if a, ok := s.t.added[int32(id)]; ok {
		if a.special && s.skipSpecial {
			return ""
		}
		token = a.text
	}
	s.push(s.stages, token)
	return s.take()
}

// Flush ends the stream and returns what was held back; what cannot become a character any more is U+FFFD.
// A flushed stream must not be pushed to again.
func (s *Stream) Flush() string {
	for i, st := range s.stages {
		st.flush(func(text string) { s.push(s.stages[i+1:], text) })
	}
	return s.take()
}

func (s *Stream) push(stages []stage, text string) {
	if len(stages) == 0 {
		s.out.WriteString(text)
		return
	}
	stages[0].push(text, func(next string) { s.push(stages[1:], next) })
}

func (s *Stream) take() string {
	text := s.out.String()
	s.out.Reset()
	return text
}

// placeholder stands in the text for an id that the vocabulary does not have.
func placeholder(id int) string { return "<unknown id " + strconv.Itoa(id) + ">" }
