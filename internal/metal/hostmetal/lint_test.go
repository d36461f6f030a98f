package hostmetal

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"llmrun/shaders"
)

// The compiler that runs our kernels knows no address spaces: device, threadgroup and thread pointers are all the same to it. Lint looks at
// shaders as Apple's compiler would, as far as clang can: testdata/lint/metal_stdlib declares Metal's functions and types with the address
// spaces that they have there. What the pre-pass finds, it finds in lint, too.

// finding is what lint says of a line.
type finding struct {
	line int
	text string
}

// lint looks at a Metal text: first the pre-pass, then clang, which only reads and makes no code.
func lint(clang, text string) (found []finding, err error) {
	text = live(text, 310)
	if _, err := parse(text); err != nil {
		return readFindings(err.Error(), ": error: "), nil
	}
	if found = gridTypes(text); found != nil {
		return found, nil
	}
	cmd := exec.Command(clang, "-x", "c++", "-std=c++17", "-fsyntax-only", "-nostdinc", "-I", "testdata/lint",
		"-target", "aarch64-linux-gnu", "-fsigned-char", "-D__METAL_VERSION__=310", // Metal has half, and a signed char
		"-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Wdouble-promotion", "-Wshadow", "-Wno-unknown-pragmas",
		"-ferror-limit=0", "-fno-caret-diagnostics", "-")
	cmd.Stdin = strings.NewReader(clangText(text))
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	found = readFindings(stderr.String(), ": (?:error|warning): ")
	if err != nil && len(found) == 0 {
		return nil, fmt.Errorf("%s: %w: %s", clang, err, stderr.String())
	}
	return found, nil
}

var (
	kernelParameters = regexp.MustCompile(`(?s)\bkernel\b[^(){}]*\([^{}]*\{`)
	gridParameter    = regexp.MustCompile(`\b(u?int|u?short)([234]?)\s+\w+\s+\[\[(thread_position_in_grid|threads_per_grid|thread_position_in_threadgroup|` +
		`threads_per_threadgroup|threadgroup_position_in_grid|dispatch_threads_per_threadgroup|threadgroups_per_grid)\]\]`)
)

// gridTypes finds positions and sizes of one kernel that are vectors of different lengths, which Metal forbids (Metal Shading Language
// Specification, section 5.2.3.6), and the host device does not mind.
func gridTypes(text string) (found []finding) {
	for _, at := range kernelParameters.FindAllStringIndex(text, -1) {
		length := ""
		for _, m := range gridParameter.FindAllStringSubmatchIndex(text[at[0]:at[1]], -1) {
			part := func(i int) string { return text[at[0]:at[1]][m[2*i]:m[2*i+1]] }
			if n := part(2); n != "" && length != "" && n != length {
				found = append(found, finding{1 + strings.Count(text[:at[0]+m[0]], "\n"), fmt.Sprintf("%s has %s components, another has %s", part(3), n, length)})
			} else if n != "" {
				length = n
			}
		}
	}
	return found
}

// clangText is what clang takes for a kernel's text: without attributes, which it does not know, and with threadgroup variables that are
// static, as C++ has no others that lie in an address space. Lines keep their numbers.
func clangText(text string) string {
	tokens, _ := lex(text)
	s := &source{text: text, tokens: tokens}
	for i, t := range tokens {
		switch {
		case t.text == "[[":
			s.blank(t.at, tokens[s.closing(i)].end())
		case t.text == "threadgroup" && (s.is(i-1, "{") || s.is(i-1, ";") || s.is(i-1, "}")):
			if next := slices.IndexFunc(tokens[i:], func(t token) bool { return strings.Contains("*&[;", t.text) }); next >= 0 && strings.Contains("[;", tokens[i+next].text) {
				s.replace(t.at, t.at, "static ")
			}
		}
	}
	s.rewrite()
	return s.text
}

// readFindings reads file:line:column, a separator, and text; from the instances of a template each finding comes once.
func readFindings(output, separator string) (found []finding) {
	for _, m := range regexp.MustCompile(`(?m)^(?:<stdin>|program_source|\w+\.(?:metal|h)):(\d+):\d+`+separator+`(.*)$`).FindAllStringSubmatch(output, -1) {
		line, _ := strconv.Atoi(m[1])
		found = append(found, finding{line, m[2]})
	}
	slices.SortStableFunc(found, func(a, b finding) int { return cmp.Compare(a.line, b.line) })
	return slices.Compact(found)
}

// findClang returns clang, or skips the test.
func findClang(t *testing.T) string {
	t.Helper()
	clang, err := exec.LookPath("clang")
	if err != nil && os.Getenv("LLMRUN_REQUIRE_CLANG") != "" {
		t.Fatal(err)
	} else if err != nil {
		t.Skip("no clang, which lint needs (apt-get install clang); LLMRUN_REQUIRE_CLANG=1 makes this a failure")
	}
	return clang
}

func TestLint(t *testing.T) {
	clang := findClang(t)
	for _, file := range shaders.Files() {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			text, err := shaders.Source(file, nil)
			if err != nil {
				t.Fatal(err)
			}
			found, err := lint(clang, text)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				t.Errorf("shaders/%s:%d: %s", file, f.line, f.text)
			}
		})
	}
}

// wants are the findings that a text asks for, in comments // want TEXT at the end of their lines.
func wants(text string) (want []finding) {
	for i, line := range strings.Split(text, "\n") {
		if _, w, ok := strings.Cut(line, "// want "); ok {
			want = append(want, finding{i + 1, w})
		}
	}
	return want
}

// checkFindings tells whether what was found is all that was wanted, and nothing else.
func checkFindings(t *testing.T, found, want []finding) {
	t.Helper()
	for _, f := range found {
		if !slices.ContainsFunc(want, func(w finding) bool { return w.line == f.line && strings.Contains(f.text, w.text) }) {
			t.Errorf("line %d: not wanted: %s", f.line, f.text)
		}
	}
	for _, w := range want {
		if !slices.ContainsFunc(found, func(f finding) bool { return w.line == f.line && strings.Contains(f.text, w.text) }) {
			t.Errorf("line %d: not found: %s", w.line, w.text)
		}
	}
}

func TestLintFindsMistakes(t *testing.T) {
	clang := findClang(t)
	for _, file := range []string{"mistakes.metal", "uninitialized.metal"} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile("testdata/lint/" + file)
			if err != nil {
				t.Fatal(err)
			}
			found, err := lint(clang, string(text))
			if err != nil {
				t.Fatal(err)
			}
			checkFindings(t, found, wants(string(text)))
		})
	}
}

func TestLintFindsGridTypes(t *testing.T) {
	const text = `kernel void good(device float *x [[buffer(0)]], uint2 at [[thread_position_in_grid]], uint2 n [[threads_per_grid]], uint i [[thread_index_in_simdgroup]]) {}
kernel void bad(device float *x [[buffer(0)]],
    uint3 at [[thread_position_in_grid]],
    uint one [[threadgroups_per_grid]],
    uint2 n [[threads_per_grid]]) {} // want threads_per_grid has 2 components, another has 3
`
	checkFindings(t, gridTypes(text), wants(text))
}

// TestLintBindings: how a kernel is bound, the pre-pass checks, and it stops at the first mistake. The host device refuses such kernels
// with the same words, with or without clang.
func TestLintBindings(t *testing.T) {
	for _, text := range []string{
		"kernel void f(device float *out [[buffer(0)]],\n    device float *x) {} // want kernel parameter \"x\" has no attribute",
		"kernel void f(device float *out [[buffer(0)]],\n    device float *x [[buffer(0)]]) {} // want [[buffer(0)]] is used twice, by \"out\" and \"x\"",
		"kernel void f(threadgroup float *a [[threadgroup(1)]],\n    threadgroup float *b [[threadgroup(1)]]) {} // want [[threadgroup(1)]] is used twice",
		"kernel void f(\n    device float *out [[buffer(31)]]) {} // want buffer index 31 is out of bounds 0..30",
		"kernel void f(\n    uint i [[thread_position_in_gird]]) {} // want unknown attribute [[thread_position_in_gird]]",
		"kernel void f(\n    float x [[buffer(0)]]) {} // want must be in the device or constant address space",
		"kernel void f(\n    float *x [[buffer(0)]]) {} // want must be in the device or constant address space",
		"kernel void f(\n    device float *x [[threadgroup(0)]]) {} // want must be in the threadgroup address space",
		"kernel void f(device float *x [[buffer(0)]]) {\n    threadgroup float sum = 0; // want a threadgroup variable cannot have an initialiser\n}",
		"template <typename T>\nkernel void f(device T *x [[buffer(0)]]) {}\ntemplate [[kernel]] decltype(f<float>) f<float>; // want needs [[host_name(\"...\")]]",
	} {
		_, err := parse("// bad.metal\n" + text)
		if err == nil {
			t.Errorf("accepted: %s", text)
			continue
		}
		checkFindings(t, readFindings(err.Error(), ": error: "), wants("// bad.metal\n"+text))
	}
}
