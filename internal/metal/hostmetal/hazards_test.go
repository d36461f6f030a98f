package hostmetal

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var wanted = regexp.MustCompile(`// want (.*)$`)

// TestHazards runs each kernel of testdata/hazards in the checked mode: 128 threads in threadgroups of 64, with 128 elements in each
// buffer and 512 bytes in each threadgroup argument. Where a line has a comment "want", the kernel must fail at that line with that text,
// in which ALSO stands for the line that is marked "also", SAME for the line itself; a kernel without one must not fail, whatever the order.
func TestHazards(t *testing.T) {
	files, _ := filepath.Glob("testdata/hazards/*.metal")
	if len(files) == 0 {
		t.Fatal("no hazards")
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".metal"), func(t *testing.T) { hazards(t, string(b)) })
	}
}

func hazards(t *testing.T, text string) {
	metal(t)
	validate(t, 0)
	g := newGPU(t, text, precise)
	s, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text, "\n")
	for i, k := range s.kernels {
		end := len(lines)
		if i+1 < len(s.kernels) {
			end = s.kernels[i+1].line - 1
		}
		t.Run(k.name, func(t *testing.T) { hazard(t, g, s.file, k, lines, end) })
	}
}

// hazard runs a kernel, which stands in the lines before end, under five seeds.
func hazard(t *testing.T, g *gpu, file string, k kernel, lines []string, end int) {
	metal(t) // pools belong to threads, and each test has its own
	g = &gpu{t, g.device, g.queue, g.library}
	want := ""
	also := 1 + k.line + slices.IndexFunc(lines[k.line:end], func(l string) bool { return strings.HasSuffix(l, "// also") })
	for n := k.line; n < end; n++ {
		if m := wanted.FindStringSubmatch(lines[n]); m != nil {
			m[1] = strings.NewReplacer("ALSO", fmt.Sprint(also), "SAME", fmt.Sprint(n+1)).Replace(m[1])
			want = fmt.Sprintf("kernel %s (%s:%d): %s", k.name, file, n+1, m[1])
		}
	}
	for seed := range uint64(5) {
		validate(t, seed)
		got := g.run(ofKind(g, strings.Join(lines, "\n"), k))
		switch {
		case (want == "") != (got == ""):
			t.Errorf("seed %d: got %q, want %q", seed, got, want)
		case seed == 0 && !matches(got, want):
			t.Errorf("got  %q\nwant %q", got, want)
		case !strings.HasSuffix(got, "seed "+fmt.Sprint(seed)) && got != "":
			t.Errorf("%q does not name seed %d", got, seed)
		case got != "" && seed > 0 && !strings.Contains(got, file):
			t.Errorf("seed %d: %q names no line", seed, got)
		}
		if again := g.run(ofKind(g, strings.Join(lines, "\n"), k)); again != got {
			t.Errorf("seed %d: first %q, then %q", seed, got, again)
		}
	}
}

// matches: the place is the wanted one, and the text begins with or holds the wanted one.
func matches(got, want string) bool {
	gotPlace, gotText, _ := strings.Cut(got, "): ")
	wantPlace, wantText, _ := strings.Cut(want, "): ")
	return gotPlace == wantPlace && strings.Contains(gotText, wantText)
}

// elementSizes are those of the types that hazards use, where they are not 4.
var elementSizes = map[string]int{"half4": 8, "half": 2, "uchar": 1, "Pair": 8}

// ofKind is a dispatch of the kernel with what it declares, in memory of its own.
func ofKind(g *gpu, text string, k kernel) command {
	c := command{kernel: k.name, threads: line(128), group: line(64)}
	for _, p := range k.params {
		switch p.attr {
		case "buffer":
			m := regexp.MustCompile(`(\w+) [*&]` + p.name + ` \[\[`).FindStringSubmatch(text[strings.Index(text, " "+k.name+"("):])
			c.args = append(c.args, buffer(g, make([]byte, 128*cmp.Or(elementSizes[m[1]], 4))))
		case "threadgroup":
			c.tg = 512
		}
	}
	return c
}
