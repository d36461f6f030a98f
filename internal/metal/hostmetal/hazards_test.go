package hostmetal

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var wanted = regexp.MustCompile(`// want (.*)$`)

// TestHazards runs each kernel of testdata/hazards in the checked mode: 128 threads in threadgroups of 64, with 128 elements in each
// buffer and 512 bytes in each threadgroup argument, compiled by both compilers. Where a line has a comment "want", the kernel must fail at that line with that text,
// in which ALSO stands for the line that is marked "also", SAME for the line itself; a kernel without one must not fail, whatever the order.
func TestHazards(t *testing.T) {
	files, _ := filepath.Glob("testdata/hazards/*.metal")
	if len(files) == 0 {
		t.Fatal("no hazards")
	}
	compilers := []string{"g++", "clang++"}
	if cxx := os.Getenv("LLMRUN_CXX"); cxx != "" {
		compilers = []string{cxx}
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, cxx := range compilers {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".metal")+" "+cxx, func(t *testing.T) {
				useCompiler(t, cxx)
				hazards(t, string(b))
			})
		}
	}
}

// useCompiler makes cxx the compiler of kernels until the end of the test, or skips it.
func useCompiler(t *testing.T, cxx string) {
	t.Helper()
	_, err := exec.LookPath(strings.Fields(cxx)[0])
	if err != nil && cxx == "clang++" && os.Getenv("LLMRUN_REQUIRE_CLANG") != "" {
		t.Fatal(err)
	} else if err != nil {
		t.Skip(err)
	}
	t.Setenv("LLMRUN_CXX", cxx)
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

// TestEncoderHazards: dispatches of a concurrent encoder run in any order, but for barriers between them. Each case is a list of commands
// (load and store what they read and write) and of barriers; want is the report, without the place.
func TestEncoderHazards(t *testing.T) {
	metal(t)
	validate(t, 0)
	g := newGPU(t, `// order.metal
#include <metal_stdlib>
using namespace metal;
kernel void copy(device float *to [[buffer(0)]], device const float *from [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    to[i] = from[i];
}
`, precise)
	for _, c := range []struct{ name, encoder, commands, want string }{
		{"write, read", "concurrent", "a<b c<a", "data race in device memory (from[0], buffer(1)): read by thread [0 0 0] here, write by thread [0 0 0] of threadgroup [0 0 0] of kernel copy, dispatch 0 in line 5 without a memoryBarrierWithScope: between the dispatches of a concurrent encoder; threadgroup [0 0 0], thread [0 0 0], seed 0"},
		{"read, write", "concurrent", "a<b b<c", "data race in device memory (to[0], buffer(0)): write by thread [0 0 0] here, read by thread [0 0 0]"},
		{"write, write", "concurrent", "a<b a<c", "data race in device memory (to[0], buffer(0)): write by thread [0 0 0] here, write by thread [0 0 0]"},
		{"far apart", "concurrent", "a<b c<d d<b c<a", "of kernel copy, dispatch 1"},
		{"barrier", "concurrent", "a<b buffers c<a buffers a<c", ""},
		{"barrier of textures", "concurrent", "a<b textures c<a", "data race in device memory (from[0], buffer(1))"},
		{"barrier of the buffer", "concurrent", "a<b :a c<a", ""},
		{"barrier of another buffer", "concurrent", "a<b :c c<a", "data race in device memory (from[0], buffer(1))"},
		{"barrier too early", "concurrent", "buffers a<b c<a", "data race"},
		{"nothing in common", "concurrent", "a<b c<b d<b", ""},
		{"serial", "serial", "a<b c<a a<c b<a", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			metal(t)
			g := &gpu{t, g.device, g.queue, g.library}
			buffers := map[string]id{}
			for _, name := range []string{"a", "b", "c", "d"} {
				buffers[name] = buffer(g, make([]float32, 64))
			}
			cb := send(g.queue, "commandBuffer")
			e := id(objc.sendUint(cb, objc.sel("computeCommandEncoderWithDispatchType:"), map[string]uint64{"serial": 0, "concurrent": 1}[c.encoder]))
			for _, word := range strings.Fields(c.commands) {
				to, from, isCopy := strings.Cut(word, "<")
				switch {
				case isCopy:
					g.dispatch(e, command{"copy", line(64), line(32), 0, []any{buffers[to], buffers[from]}})
				case word[0] == ':':
					b := buffers[word[1:]]
					objc.fence(e, objc.sel("memoryBarrierWithResources:count:"), &b, 1)
				default:
					objc.sendUint(e, objc.sel("memoryBarrierWithScope:"), map[string]uint64{"buffers": 1, "textures": 2}[word])
				}
			}
			objc.sendVoid(e, objc.sel("endEncoding"))
			got := g.finish(cb)
			if (got == "") != (c.want == "") || c.want != "" && !strings.HasPrefix(got, "kernel copy (order.metal:5): data race in device memory (") || !strings.Contains(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// Command buffers of one queue run in the order of their commits; those of two queues in any, which the seed decides, and waiting for one
// says nothing of the other.
func TestQueueOrder(t *testing.T) {
	metal(t)
	validate(t, 0)
	g := newGPU(t, `#include <metal_stdlib>
using namespace metal;
kernel void append(device uint *x [[buffer(0)]], constant uint &digit [[buffer(1)]]) { x[0] = x[0] * 10 + digit; }
`, precise)
	second := &gpu{t, g.device, send(g.device, "newCommandQueue"), g.library}
	defer release(second.queue)
	seen := map[uint32]bool{}
	for seed := range uint64(32) {
		validate(t, seed)
		for try := range 2 {
			x := buffer(g, []uint32{0})
			var all []id
			for digit := range uint32(4) {
				q := []*gpu{g, second}[digit%2]
				cb := q.encode(command{"append", line(1), line(1), 0, []any{x, digit + 1}})
				objc.sendVoid(cb, objc.sel("commit"))
				all = append(all, cb)
			}
			for _, cb := range all {
				objc.sendVoid(cb, objc.sel("waitUntilCompleted"))
			}
			got := contents[uint32](x, 1)[0]
			if s := fmt.Sprint(got); len(s) != 4 || strings.Index(s, "1") > strings.Index(s, "3") || strings.Index(s, "2") > strings.Index(s, "4") {
				t.Fatalf("seed %d: order %d", seed, got)
			}
			if seed == 0 && got != 1234 && try == 0 {
				t.Errorf("seed 0: order %d", got)
			}
			seen[got] = true
		}
	}
	if len(seen) < 4 {
		t.Errorf("only the orders %v in 32 seeds", seen)
	}
}

// What Metal leaves undefined is NaN: a private buffer that nobody wrote.
func TestPrivateIsPoisoned(t *testing.T) {
	metal(t)
	validate(t, 0)
	g := newGPU(t, `#include <metal_stdlib>
using namespace metal;
kernel void copy(device float *to [[buffer(0)]], device const float *from [[buffer(1)]], uint i [[thread_position_in_grid]]) { to[i] = from[i]; }
`, precise)
	private := objc.two(g.device, objc.sel("newBufferWithLength:options:"), 4*33, 2<<4)
	defer release(private)
	if objc.ptr(private, objc.sel("contents")) != nil {
		t.Error("a private buffer has contents")
	}
	to := buffer(g, make([]float32, 33))
	g.must(command{"copy", line(33), line(33), 0, []any{to, private}})
	for i, v := range contents[float32](to, 33) {
		if v == v {
			t.Fatalf("element %d is %v", i, v)
		}
	}
}
