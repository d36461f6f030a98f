package hostmetal

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// A source is a Metal file as the pre-pass sees it: its kernels, the instances that it exports, and
// its text with the parts rewritten that mean nothing to a C++ compiler. Lines keep their numbers.
type source struct {
	file    string // for messages: from a first line "// name.metal", else program_source as in Metal
	text    string
	kernels []kernel
	exports []export

	tokens []token
	bodies map[string][]string // identifiers in the body of each function and macro
	edits  []edit
	err    error // the first mistake
}

type kernel struct {
	name       string
	line       int
	template   bool
	hostName   string
	maxThreads int
	params     []param
	syncs      bool // may wait for other threads: each thread needs a stack
	staticTG   bool // has threadgroup variables
}

type param struct {
	name  string
	space string // device, constant, threadgroup or empty
	ref   bool
	attr  string // buffer, threadgroup or a built-in's name
	index int
}

// An export is a kernel under the name that newFunctionWithName: takes. expr names the function in
// C++: rmsnorm, or rmsnorm<half>.
type export struct {
	hostName, expr, kernel string
	line                   int
}

type edit struct {
	from, to int
	text     string
}

// parse runs the pre-pass. Its errors read like a compiler's: file:line: error: text.
func parse(text string) (*source, error) {
	s := &source{file: "program_source", text: text, bodies: map[string][]string{}}
	first, _, _ := strings.Cut(text, "\n")
	if name, ok := strings.CutPrefix(strings.TrimSpace(first), "// "); ok && strings.HasSuffix(name, ".metal") && path.Base(name) == name && !strings.ContainsAny(name, `"\ `) {
		s.file = name
	}
	var macros map[string]string
	s.tokens, macros = lex(text)
	for name, body := range macros {
		tokens, _ := lex(body)
		s.bodies[name] = identifiers(tokens)
	}
	s.findBodies()
	for i := 0; i < len(s.tokens); i++ {
		switch t := s.tokens[i]; {
		case t.text == "[[":
			text := ""
			if slices.ContainsFunc(s.inside(i), func(t token) bool { return t.text == "kernel" }) {
				text = "static" // as the word kernel alone is defined
			}
			s.replace(t.at, s.tokens[s.closing(i)].end(), text)
		case t.text == "const" && (s.is(i+1, "constant") || s.is(i-1, "constant")):
			s.blank(t.at, t.end())
		case t.text == "template" && !s.is(i+1, "<"):
			i = s.instance(i)
		case t.text == "kernel":
			s.kernel(i)
		case t.text == "threadgroup" && (s.is(i-1, "{") || s.is(i-1, ";") || s.is(i-1, "}")):
			s.threadgroupVariable(i)
		case t.text == "function_constant" && s.is(i-1, "[["):
			s.fail(t, "function constants are not served by the host device: use a template parameter")
		}
	}
	s.checkExports()
	if s.err == nil {
		s.rewrite()
	}
	return s, s.err
}

func (s *source) fail(t token, format string, args ...any) {
	if s.err == nil {
		column := t.at - strings.LastIndexByte(s.text[:t.at], '\n')
		s.err = fmt.Errorf("%s:%d:%d: error: %s", cmp.Or(t.file, s.file), t.line, column, fmt.Sprintf(format, args...))
	}
}

// is tells whether token i exists and reads text.
func (s *source) is(i int, text string) bool {
	return i >= 0 && i < len(s.tokens) && s.tokens[i].text == text
}

// closing returns the index of the bracket that closes the one at i, or of the last token.
func (s *source) closing(i int) int {
	partner := map[string]string{"(": ")", "{": "}", "[": "]", "[[": "]]", "<": ">"}
	open := s.tokens[i].text
	depth := 0
	for ; i < len(s.tokens); i++ {
		switch s.tokens[i].text {
		case open:
			depth++
		case partner[open]:
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(s.tokens) - 1
}

// inside returns the tokens between the bracket at i and the one that closes it.
func (s *source) inside(i int) []token { return s.tokens[i+1 : max(i+1, s.closing(i))] }

// at returns token i, or an empty one past the end.
func (s *source) at(i int) token {
	if i < len(s.tokens) {
		return s.tokens[i]
	}
	return token{}
}

func (s *source) blank(from, to int) { s.replace(from, to, "") }
func (s *source) replace(from, to int, text string) {
	s.edits = append(s.edits, edit{from, to, text})
}

// rewrite applies the edits; what is removed leaves its newlines, and blanks in its place.
func (s *source) rewrite() {
	slices.SortStableFunc(s.edits, func(a, b edit) int { return a.from - b.from })
	var b strings.Builder
	at := 0
	for _, e := range s.edits {
		if e.from < at {
			continue // inside of another edit
		}
		b.WriteString(s.text[at:e.from])
		b.WriteString(e.text)
		for i, c := range s.text[e.from:e.to] {
			if c == '\n' {
				b.WriteByte('\n')
			} else if i >= len(e.text) {
				b.WriteByte(' ')
			}
		}
		at = e.to
	}
	b.WriteString(s.text[at:])
	s.text = b.String()
}

func identifiers(tokens []token) (names []string) {
	for _, t := range tokens {
		if t.kind == identifier {
			names = append(names, t.text)
		}
	}
	return names
}

// findBodies notes what each function mentions. Overloads are merged.
func (s *source) findBodies() {
	for i := range s.tokens {
		if s.tokens[i].kind != identifier || !s.is(i+1, "(") {
			continue
		}
		e := s.closing(i + 1)
		for s.is(e+1, "const") {
			e++
		}
		if s.is(e+1, "{") {
			name := s.tokens[i].text
			s.bodies[name] = append(s.bodies[name], identifiers(s.inside(e+1))...)
		}
	}
}

// reaches tells whether a function mentions, itself or through those it mentions, an identifier
// that satisfies is. It may say yes too often, never too rarely.
func (s *source) reaches(function string, is func(string) bool) bool {
	seen := map[string]bool{}
	var visit func(string) bool
	visit = func(name string) bool {
		if is(name) {
			return true
		}
		if seen[name] {
			return false
		}
		seen[name] = true
		return slices.ContainsFunc(s.bodies[name], visit)
	}
	return slices.ContainsFunc(s.bodies[function], visit)
}

func synchronises(name string) bool {
	return name == "threadgroup_barrier" || strings.HasPrefix(name, "simd_") || strings.HasPrefix(name, "quad_") ||
		strings.HasPrefix(name, "simdgroup_") || name == "make_filled_simdgroup_matrix"
}

// kernel reads the definition whose word kernel is token i: kernel void f(...), [[kernel]] void f(...),
// or [[kernel, host_name("x")]] void f(...).
func (s *source) kernel(i int) {
	k := kernel{line: s.tokens[i].line}
	first, j := i, i+1 // first token of the definition; where its attributes or void stand
	if open := s.attributeStart(i); open >= 0 {
		first, j = open, open
	}
	k.template = s.is(first-1, ">")
	for s.is(j, "[[") {
		for _, a := range splitCommas(s.inside(j)) {
			s.attribute(&k, a)
		}
		j = s.closing(j) + 1
	}
	if !s.is(j, "void") || !s.is(j+2, "(") {
		s.fail(s.tokens[i], "a kernel is defined as: kernel void name(parameters) { ... }")
		return
	}
	k.name = s.tokens[j+1].text
	k.params = s.params(s.inside(j + 2))
	k.staticTG = s.reaches(k.name, func(name string) bool { return name == "threadgroup" })
	k.syncs = k.staticTG || s.reaches(k.name, synchronises)
	s.kernels = append(s.kernels, k)
}

// attributeStart returns the index of the [[ around token i, or -1.
func (s *source) attributeStart(i int) int {
	for ; i >= 0 && s.tokens[i].text != "]]" && s.tokens[i].text != ";" && s.tokens[i].text != "}"; i-- {
		if s.tokens[i].text == "[[" {
			return i
		}
	}
	return -1
}

func (s *source) attribute(k *kernel, tokens []token) {
	if len(tokens) < 3 {
		return
	}
	switch value := tokens[2]; tokens[0].text {
	case "host_name":
		k.hostName = strings.Trim(value.text, `"`)
	case "max_total_threads_per_threadgroup":
		n, err := strconv.Atoi(value.text)
		if err != nil || n < 1 || n > 1024 {
			s.fail(value, "max_total_threads_per_threadgroup must be a number from 1 to 1024")
		}
		k.maxThreads = n
	}
}

// params reads a kernel's parameter list.
func (s *source) params(tokens []token) (out []param) {
	used := map[string]string{}
	for _, part := range splitCommas(tokens) {
		p := param{}
		for i := 0; i < len(part); i++ {
			switch t := part[i]; {
			case t.text == "device" || t.text == "constant" || t.text == "threadgroup":
				p.space = t.text
			case t.text == "&":
				p.ref = true
			case t.text == "[[" && i+1 < len(part):
				p.attr = part[i+1].text
				if i+3 < len(part) && part[i+2].text == "(" {
					p.index, _ = strconv.Atoi(part[i+3].text)
				}
				for i < len(part)-1 && part[i].text != "]]" {
					i++
				}
			case t.kind == identifier && p.attr == "":
				p.name = t.text
			}
		}
		s.checkParam(part[0], p)
		if key := fmt.Sprint(p.attr, p.index); p.attr == "buffer" || p.attr == "threadgroup" {
			if used[key] != "" {
				s.fail(part[0], "[[%s(%d)]] is used twice, by %q and %q", p.attr, p.index, used[key], p.name)
			}
			used[key] = p.name
		}
		out = append(out, p)
	}
	return out
}

// builtins are the attributes of kernel parameters that need no binding; msl_kernel.h defines each.
var builtins = []string{
	"thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid",
	"threads_per_threadgroup", "dispatch_threads_per_threadgroup", "threadgroups_per_grid", "threads_per_grid",
	"thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
	"simdgroups_per_threadgroup", "threads_per_simdgroup", "thread_execution_width",
}

func (s *source) checkParam(at token, p param) {
	switch p.attr {
	case "":
		s.fail(at, "kernel parameter %q has no attribute: [[buffer(n)]], [[threadgroup(n)]] or a built-in", p.name)
	case "buffer":
		if p.space != "device" && p.space != "constant" {
			s.fail(at, "buffer parameter %q must be in the device or constant address space", p.name)
		}
		if p.index < 0 || p.index > 30 {
			s.fail(at, "buffer index %d is out of bounds 0..30", p.index)
		}
	case "threadgroup":
		if p.space != "threadgroup" {
			s.fail(at, "parameter %q must be in the threadgroup address space", p.name)
		}
		if p.index < 0 || p.index > 7 {
			s.fail(at, "threadgroup index %d is out of bounds 0..7", p.index)
		}
	default:
		if !slices.Contains(builtins, p.attr) {
			s.fail(at, "unknown attribute [[%s]] of parameter %q", p.attr, p.name)
		}
	}
}

// splitCommas cuts at the commas outside of all brackets.
func splitCommas(tokens []token) (parts [][]token) {
	depth, from := 0, 0
	for i, t := range tokens {
		switch t.text {
		case "(", "<", "[", "[[", "{":
			depth++
		case ")", ">", "]", "]]", "}":
			depth--
		case ",":
			if depth == 0 && i > from {
				parts = append(parts, tokens[from:i])
				from = i + 1
			}
		}
	}
	if from < len(tokens) {
		parts = append(parts, tokens[from:])
	}
	return parts
}

// instance reads template [[host_name("x")]] [[kernel]] TYPE name<arguments>; or ...name<arguments>(types);
// from the word template, token i, and returns the index of its last token. The table of kernels names
// the instance again; what stands here would only be compiled a second time.
func (s *source) instance(i int) int {
	e := export{}
	isKernel := false
	j := i + 1
	for ; j < len(s.tokens) && s.tokens[j].text != ";"; j++ {
		switch t := s.tokens[j]; {
		case t.text == "host_name" && s.is(j+1, "("):
			e.hostName = strings.Trim(s.at(j+2).text, `"`)
		case t.text == "kernel":
			isKernel = true
		case t.kind == identifier && s.is(j+1, "<"):
			end := s.closing(j + 1)
			if s.is(end+1, ";") || s.is(end+1, "(") {
				e.expr, e.kernel, e.line = s.text[t.at:s.tokens[end].end()], t.text, t.line
			}
			j = end
		}
	}
	if !isKernel || j == len(s.tokens) {
		return i
	}
	if e.hostName == "" || e.expr == "" {
		s.fail(s.tokens[i], "an explicit instantiation of a kernel needs [[host_name(\"...\")]] and its template arguments")
	}
	s.exports = append(s.exports, e)
	s.blank(s.tokens[i].at, s.tokens[j].end())
	return j
}

// threadgroupVariable rewrites threadgroup T a[m][n], b[k]; into one MSL_TG_VAR per variable.
// Pointers and references into threadgroup memory stay as they are.
func (s *source) threadgroupVariable(i int) {
	end := i + 1
	for end < len(s.tokens) && s.tokens[end].text != ";" {
		end++
	}
	if end == len(s.tokens) {
		return
	}
	var vars strings.Builder
	typ := ""
	for n, part := range splitCommas(s.tokens[i+1 : end]) {
		name, dims := len(part)-1, ""
		for k, t := range part {
			if t.text == "*" || t.text == "&" || t.text == "(" {
				return
			}
			if t.text == "=" {
				s.fail(t, "a threadgroup variable cannot have an initialiser")
				return
			}
			if t.text == "[" {
				name, dims = k-1, s.text[t.at:part[len(part)-1].end()]
				break
			}
		}
		if name < 0 || n == 0 && name == 0 {
			return
		}
		if n == 0 {
			typ = strings.TrimSpace(s.text[part[0].at:part[name].at])
		}
		fmt.Fprintf(&vars, "MSL_TG_VAR(%s, %s%s);", part[name].text, typ, dims)
	}
	s.replace(s.tokens[i].at, s.tokens[end].end(), vars.String())
}

// checkExports adds the kernels that are no templates to the exports, and compares names.
func (s *source) checkExports() {
	for _, k := range s.kernels {
		if !k.template {
			name := k.hostName
			if name == "" {
				name = k.name
			}
			s.exports = append(s.exports, export{name, k.name, k.name, k.line})
		}
	}
	seen := map[string]bool{}
	for _, e := range s.exports {
		at := token{line: e.line}
		if seen[e.hostName] {
			s.fail(at, "two kernels have the name %q", e.hostName)
		}
		seen[e.hostName] = true
		if s.find(e.kernel) == nil {
			s.fail(at, "instantiation of %s, which is no kernel of this file", e.kernel)
		}
	}
}

func (s *source) find(name string) *kernel {
	for i := range s.kernels {
		if s.kernels[i].name == name {
			return &s.kernels[i]
		}
	}
	return nil
}
