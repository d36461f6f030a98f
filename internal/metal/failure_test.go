package metal

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"unsafe"

	"github.com/ebitengine/purego"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// hostFunction finds a function that only the host device has.
func hostFunction(t *testing.T, f any, name string) {
	t.Helper()
	open(t, Options{Activations: num.Float32}).Close()
	s, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if !s.host {
		t.Skip("only the host device has " + name)
	}
	p, err := s.symbol(name)
	if err != nil {
		t.Fatal(err)
	}
	purego.RegisterFunc(f, p)
}

// TestCommandErrors: a command buffer that fails says what happened, which ops it had and what would help, and no token comes after it.
func TestCommandErrors(t *testing.T) {
	var fail func(int32)
	hostFunction(t, &fail, "hostmetal_fail_next")
	for code, known := range commandErrors {
		b := open(t, Options{Activations: num.Float32})
		s := session(t, decoder(t, b, "m_gemma2"), 8)
		decode(t, s, 3) // and the fourth is ready
		fail(int32(code))
		_, err := s.Step(1)
		var command *CommandError
		if !errors.As(err, &command) || command.Code != code || command.Hint() != known.hint {
			t.Fatalf("code %d: %v", code, err)
		}
		text := commandErrorDomain + " " + strconv.Itoa(code) + " (" + known.name + "): "
		if !strings.HasPrefix(err.Error(), "step 4 embed: metal kernel embed_f32_f32: one of ") || !strings.Contains(err.Error(), text) ||
			!strings.Contains(err.Error(), " ops up to step 4 l") {
			t.Errorf("code %d: %v", code, err)
		}
		if _, again := s.Step(1); again != err {
			t.Errorf("code %d: the step after the failure gives %v", code, again)
		}
		if err := s.Reset(); err != nil {
			t.Error(err) // it touches no memory of the device
		}
		if _, again := s.Step(1); again != err {
			t.Errorf("code %d: a new text after the failure gives %v", code, again)
		}
		b.Close()
	}
	if e := (&CommandError{99, "unheard of"}); e.Error() != "MTLCommandBufferErrorDomain 99: unheard of" || e.Hint() != "" {
		t.Errorf("an unknown code: %v", e)
	}
}

// TestCommandErrorsAreApples: the codes and their names are those of Apple's headers.
func TestCommandErrorsAreApples(t *testing.T) {
	const prefix = "MTLCommandBufferError"
	found := 0
	for name, row := range readAPI(t, "constant") {
		if !strings.HasPrefix(name, prefix+" ") || strings.Contains(row.availability, "deprecated") {
			continue
		}
		words := ""
		for _, r := range strings.TrimPrefix(name, prefix+" "+prefix) {
			if unicode.IsUpper(r) && words != "" {
				words += " "
			}
			words += string(unicode.ToLower(r))
		}
		code, err := strconv.Atoi(row.result[strings.LastIndexByte(row.result, ' ')+1:])
		if err != nil {
			t.Fatal(err)
		}
		if known, ok := commandErrors[code]; ok != (code != 0) || ok && known.name != words {
			t.Errorf("code %d is %q, we say %q", code, words, known.name)
		}
		found++
	}
	if found != len(commandErrors)+1 {
		t.Errorf("%d codes in Apple's headers, %d here", found-1, len(commandErrors))
	}
}

// hang lets the device run a kernel that ends when the host sets the flag.
func (l lab) hang() (flag *atomic.Uint32, x engine.Buffer) {
	l.Helper()
	switch {
	case !l.b.info.Host:
		l.Skip("a GPU that hangs takes the display with it")
	case l.b.info.Validate:
		l.Skip("a checked device does not let the CPU write what a kernel uses")
	}
	l.kernels(`kernel void hang(device atomic_uint *go [[buffer(0)]], constant uint &want [[buffer(1)]]) {
    while (atomic_load_explicit(go, memory_order_relaxed) != want) {}
}`, "hang")
	x = l.words([]uint32{0})
	flag = (*atomic.Uint32)(unsafe.Pointer(&l.host(x)[0]))
	l.queue("hang", size{1, 1, 1}, size{1, 1, 1}, 1, l.b.typed(x, num.Int32))
	return flag, x
}

// TestTimeout: a command buffer that does not end is an error and not a hang, and the backend is not used again.
func TestTimeout(t *testing.T) {
	l := newLab(t)
	flag, x := l.hang()
	l.b.timeout = 50 * time.Millisecond
	err := l.b.Sync()
	var late *TimeoutError
	if !errors.As(err, &late) || err.Error() != "step 0 hang: metal kernel hang: the GPU has not finished after 50ms" || late.Hint() == "" {
		t.Fatalf("a kernel that does not end: %v", err)
	}
	if _, again := x.Host(); again != err {
		t.Errorf("the memory that it writes: %v", again)
	}
	if _, again := l.b.NewBuffer(num.Int32, 1); !errors.Is(again, late) {
		t.Errorf("a new buffer: %v", again)
	}
	l.b.Run(addOp(func(num.DType, int) engine.Buffer { return x }, x, x, 1))
	if again := l.b.Sync(); again != err {
		t.Errorf("the next op: %v", again)
	}
	l.b.Close()
	flag.Store(1) // nothing was released: what hangs may end when it likes
	decode(t, session(t, decoder(t, open(t, Options{Activations: num.Float32}), "m_llama"), 4), 4)
}

// TestPrepareWhileRunning: ops are made ready while the device is busy, and Prepare does not wait for it.
func TestPrepareWhileRunning(t *testing.T) {
	l := newLab(t)
	buf := newBuffers(t, l.b)
	op := addOp(buf, buf(num.Float32, 4), buf(num.Float32, 4), 4)
	flag, _ := l.hang()
	ticket := l.b.Prepare([]engine.Op{op})
	l.do(func() error {
		if s := l.b.flying[0].commands.status(); s >= statusCompleted {
			t.Errorf("the device was not busy: status %d", s)
		}
		return nil
	})
	flag.Store(1)
	if !l.b.Start(ticket) {
		t.Error("what was prepared is gone")
	}
	l.sync()
}

func TestTimeoutVariable(t *testing.T) {
	for _, v := range []string{"soon", "60", "0s", "-1s"} {
		t.Setenv(timeoutVariable, v)
		if _, err := timeout(false); err == nil || !strings.HasPrefix(err.Error(), timeoutVariable+": want ") || !strings.Contains(err.Error(), v) {
			t.Errorf("%s: %v", v, err)
		}
	}
	t.Setenv(timeoutVariable, "90s")
	if d, err := timeout(true); err != nil || d != 90*time.Second {
		t.Errorf("90s is %v, %v", d, err)
	}
	t.Setenv(timeoutVariable, "")
	for _, host := range []bool{true, false} {
		if d, err := timeout(host); err != nil || d < time.Minute {
			t.Errorf("without the variable: %v, %v", d, err)
		}
	}
}
