package hostmetal

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/cpu"
)

// native holds abi.h, the prelude (Metal's standard library for C++) and the runtime.
//
//go:embed native
var native embed.FS

// setupError is a failure that another setting may mend.
type setupError struct {
	error
	hint string
}

func (e *setupError) Unwrap() error { return e.error }

// Hint names the setting.
func (e *setupError) Hint() string { return e.hint }

// NoCompilerError says that no C++ compiler was found.
type NoCompilerError struct {
	Tried []string
}

func (e *NoCompilerError) Error() string {
	return "host Metal device: no C++ compiler found, tried " + strings.Join(e.Tried, ", ")
}

// Hint names the command that installs one.
func (e *NoCompilerError) Hint() string {
	if len(e.Tried) == 1 {
		return "LLMRUN_CXX=g++ names the C++ compiler to use"
	}
	if runtime.GOOS == "darwin" {
		return "xcode-select --install"
	}
	release, _ := os.ReadFile("/etc/os-release")
	return installHint(string(release))
}

// installHint chooses by ID and ID_LIKE of os-release(5).
func installHint(release string) string {
	var ids string
	for line := range strings.Lines(release) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), "="); key == "ID" || key == "ID_LIKE" {
			ids += " " + strings.Trim(value, `"'`)
		}
	}
	for _, id := range strings.Fields(ids) {
		switch id {
		case "debian", "ubuntu":
			return "sudo apt-get install g++"
		case "fedora", "rhel", "centos", "amzn":
			return "sudo dnf install gcc-c++"
		case "suse", "opensuse":
			return "sudo zypper install gcc-c++"
		case "arch":
			return "sudo pacman -S gcc"
		}
	}
	return "install g++ or clang++, or set LLMRUN_CXX to one"
}

// A compiler is a C++ compiler and the arguments that its command carries (ccache g++).
type compiler struct {
	command  []string
	clang    bool
	name     string // "g++ 12.2"
	identity string // changes whenever the compiler does
}

var compilers = struct {
	sync.Mutex
	found map[string]*compiler // by $LLMRUN_CXX and $PATH
}{found: map[string]*compiler{}}

// findCompiler returns $LLMRUN_CXX, or else the first of g++, clang++ and c++ in $PATH.
func findCompiler() (*compiler, error) {
	compilers.Lock()
	defer compilers.Unlock()
	key := os.Getenv("LLMRUN_CXX") + "\x00" + os.Getenv("PATH")
	if c := compilers.found[key]; c != nil {
		return c, nil
	}
	try := []string{"g++", "clang++", "c++"}
	if cxx := strings.TrimSpace(os.Getenv("LLMRUN_CXX")); cxx != "" {
		try = []string{cxx}
	}
	for _, cxx := range try {
		command := strings.Fields(cxx)
		path, err := exec.LookPath(command[0])
		if err != nil {
			continue
		}
		c, err := identify(append([]string{path}, command[1:]...))
		if err != nil {
			return nil, err
		}
		compilers.found[key] = c
		return c, nil
	}
	return nil, &NoCompilerError{try}
}

var versionNumber = regexp.MustCompile(`\d+\.\d+(\.\d+)?`)

func identify(command []string) (*compiler, error) {
	out, err := exec.Command(command[0], append(command[1:], "--version")...).Output()
	if err != nil {
		return nil, &setupError{fmt.Errorf("host Metal device: %s --version: %w", strings.Join(command, " "), err),
			"LLMRUN_CXX=g++ names the C++ compiler to use"}
	}
	real, err := filepath.EvalSymlinks(command[0])
	if err != nil {
		return nil, fmt.Errorf("host Metal device: %w", err)
	}
	st, err := os.Stat(real)
	if err != nil {
		return nil, fmt.Errorf("host Metal device: %w", err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	c := &compiler{command: command, clang: strings.Contains(string(out), "clang"), name: "g++"}
	if c.clang {
		c.name = "clang++"
	}
	if v := versionNumber.FindAllString(first, -1); len(v) > 0 {
		parts := strings.Split(v[len(v)-1], ".")
		c.name += " " + parts[0] + "." + parts[1]
	}
	c.identity = fmt.Sprint(command, real, st.Size(), st.ModTime().UnixNano(), string(out))
	return c, nil
}

// flags are common to the runtime and the kernels.
func (c *compiler) flags() []string {
	f := []string{"-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
		"-fno-threadsafe-statics", "-fno-strict-aliasing", "-fno-stack-protector", "-U_FORTIFY_SOURCE", "-Wno-psabi"}
	if runtime.GOARCH == "amd64" { // msl_switch pushes, and jumps into the middle of functions
		f = append(f, "-mno-red-zone", "-fcf-protection=none")
	} else {
		f = append(f, "-mbranch-protection=none")
	}
	if !c.clang {
		f = append(f, "-fno-gnu-unique") // unique symbols would keep libraries from being unloaded
	}
	return f
}

// kernelFlags: constants are float and char is signed, as in Metal; a stack of 16 KB must hold any kernel.
func (c *compiler) kernelFlags(d dialect) []string {
	f := append(c.flags(), "-nostdinc++", "-fsigned-char", "-fno-math-errno", "-fno-trapping-math", "-Wframe-larger-than=6144",
		"-Wno-attributes", "-Wno-unknown-pragmas")
	if c.clang {
		f = append(f, "-Xclang", "-cl-single-precision-constant", "-Werror=frame-larger-than", "-Wno-user-defined-literals", "-Wno-unknown-attributes")
	} else {
		f = append(f, "-fpeel-loops", "-fsingle-precision-constant", "-Werror=frame-larger-than=6144", "-Wno-literal-suffix")
	}
	if runtime.GOARCH == "amd64" && cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasBMI2 {
		f = append(f, "-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt")
	}
	if d.fastMath {
		f = append(f, "-ffp-contract=fast")
	} else {
		f = append(f, "-ffp-contract=off")
	}
	if d.checked {
		f = append(f, c.checkedFlags()...)
	}
	define := map[bool]int{true: 1}
	return append(f, fmt.Sprintf("-DMSL_FAST_FUNCTIONS=%d", define[d.fastFunctions]), fmt.Sprintf("-DMSL_CHECKED=%d", define[d.checked]),
		fmt.Sprintf("-D__METAL_VERSION__=%d", d.language))
}

// checkedFlags: kernels tell of each load and store, of each index that an array has not and each address that is not aligned, and know
// their lines. Without the default
// libraries -fsanitize links none of its own: check.cpp has what it calls.
func (c *compiler) checkedFlags() []string {
	f := []string{"-O1", "-g1", "-fsanitize=thread,bounds,alignment,integer-divide-by-zero", "-Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset"}
	if c.clang {
		return append(f, "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-read-before-write=1")
	}
	return append(f, "--param", "tsan-instrument-func-entry-exit=0")
}

// CompileError is what the compiler said of a Metal source, in lines file:line:column: error: text.
type CompileError struct {
	Text string
}

func (e *CompileError) Error() string { return e.Text }

// run writes the native files and the named texts to dir, and compiles there.
func (c *compiler) run(dir string, flags []string, texts map[string]string, inputs []string, out string, libraries ...string) error {
	err := fs.WalkDir(native, "native", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(path))
		if d.IsDir() {
			return os.MkdirAll(to, 0o700)
		}
		text, err := native.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o600)
	})
	for name, text := range texts {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	if err != nil {
		return fmt.Errorf("host Metal device: %w", err)
	}
	args := append(c.command[1:len(c.command):len(c.command)], flags...)
	args = append(args, "-I", "native/prelude", "-o", out)
	args = append(append(args, inputs...), "-nodefaultlibs")
	args = append(append(args, libraries...), "-lc", "-lgcc")
	cmd := exec.Command(c.command[0], args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return &CompileError{diagnostics(stderr.String(), err)}
		}
		return fmt.Errorf("host Metal device: %s: %w", c.command[0], err)
	}
	return nil
}

// diagnostics keeps the errors and the notes that lead to them, at most 40 lines, without the
// prelude's own places.
func diagnostics(text string, err error) string {
	var out []string
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && len(out) < 40 {
		l := lines.Text()
		if strings.Contains(l, "native/prelude/") && !strings.Contains(l, "error:") || strings.HasPrefix(strings.TrimSpace(l), "from ") || strings.HasPrefix(l, "In file included") {
			continue
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		return err.Error()
	}
	return strings.Join(out, "\n")
}
