package hostmetal

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// tempCache is a safe cache for this test alone, and needs a compiler.
func tempCache(t *testing.T) string {
	t.Helper()
	metal(t)
	dir := filepath.Join(t.TempDir(), "cache")
	t.Setenv("LLMRUN_CACHE", dir)
	return dir
}

// libraries lists the names in a cache.
func libraries(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

const tiny = "// tiny.metal\n#include <metal_stdlib>\nkernel void f(device float *x [[buffer(0)]]) { x[0] = 1; }\n"

func TestCacheKeepsSuccesses(t *testing.T) {
	dir := tempCache(t)
	first, err := compileMetal(tiny, dialect{language: 310})
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(first)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Fatalf("%v, mode %v", err, st.Mode())
	}
	if st, _ := os.Stat(dir); st.Mode().Perm() != 0o700 {
		t.Errorf("the cache has mode %v", st.Mode())
	}
	again, err := compileMetal(tiny, dialect{language: 310})
	if err != nil || again != first {
		t.Fatalf("%s, then %s, %v", first, again, err)
	}
	if st2, _ := os.Stat(first); !os.SameFile(st, st2) {
		t.Error("compiled twice")
	}
	fast, err := compileMetal(tiny, dialect{fastMath: true, fastFunctions: true, language: 310})
	if err != nil || fast == first {
		t.Errorf("fast math shares %s, %v", fast, err)
	}
	if _, err := compileMetal(strings.Replace(tiny, "= 1", "= y", 1), dialect{language: 310}); err == nil {
		t.Error("an error is no error")
	}
	if names := libraries(t, dir); len(names) != 2 || !strings.HasPrefix(names[0], "tiny-") {
		t.Errorf("the cache holds %v", names)
	}
}

// A library that was cut short, or changed in any byte, is built again.
func TestCacheRepairs(t *testing.T) {
	tempCache(t)
	path, err := compileMetal(tiny, dialect{language: 310})
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte(nil), whole...)
	flipped[len(flipped)/2] ^= 1
	for name, bytes := range map[string][]byte{"empty": nil, "short": whole[:len(whole)/2], "one byte less": whole[:len(whole)-1], "flipped": flipped} {
		if err := os.WriteFile(path, bytes, 0o700); err != nil {
			t.Fatal(err)
		}
		if ok, err := intact(path); ok || err != nil {
			t.Errorf("%s: taken for intact, %v", name, err)
		}
	}
	if _, err := compileMetal(tiny, dialect{language: 310}); err != nil {
		t.Fatal(err)
	}
	if ok, err := intact(path); !ok || err != nil {
		t.Errorf("not repaired, %v", err)
	}
}

func TestCacheRefusesOthers(t *testing.T) {
	dir := tempCache(t)
	path, err := compileMetal(tiny, dialect{language: 310})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what, hint string) {
		t.Helper()
		_, err := compileMetal(tiny, dialect{language: 310})
		var unsafe *UnsafeCacheError
		if !errors.As(err, &unsafe) || !strings.Contains(err.Error(), what) || unsafe.Hint() != hint {
			t.Errorf("got %v, want %q", err, what)
		}
	}
	for _, mode := range []os.FileMode{0o777, 0o770, 0o702} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		refused("cache "+dir+" is writable by others", "chmod go-w "+dir)
	}
	os.Chmod(dir, 0o755)
	if _, err := compileMetal(tiny, dialect{language: 310}); err != nil {
		t.Errorf("refused a cache that others may read: %v", err)
	}
	os.Chmod(path, 0o722)
	refused("cache "+path+" is writable by others", "chmod go-w "+path)
	os.Chmod(path, 0o700)
	if os.Geteuid() != 0 {
		return // only root gives files away
	}
	os.Chown(path, 12345, 12345)
	refused("belongs to user 12345", "set LLMRUN_CACHE to a folder of your own")
	os.Chown(path, 0, 0)
	os.Chown(dir, 12345, 12345)
	refused("cache "+dir+" belongs to user 12345", "set LLMRUN_CACHE to a folder of your own")
	os.Chown(dir, 0, 0)
}

// Two processes that start at once compile once: the compiler here is a script that counts.
func TestCacheTwoProcesses(t *testing.T) {
	const variable = "HOSTMETAL_TEST_COMPILE"
	if os.Getenv(variable) != "" {
		if _, err := compileMetal(tiny, dialect{language: 310}); err != nil {
			t.Fatal(err)
		}
		return
	}
	needRestart(t)
	dir := tempCache(t)
	c, err := findCompiler()
	if err != nil {
		t.Fatal(err)
	}
	scratch := t.TempDir()
	log, script := filepath.Join(scratch, "log"), filepath.Join(scratch, "cxx")
	text := "#!/bin/sh\ncase \"$*\" in *--version*) ;; *) echo compiled >> " + log + " ;; esac\nexec " + strings.Join(c.command, " ") + " \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestCacheTwoProcesses$")
			cmd.Env = append(os.Environ(), variable+"=1", "LLMRUN_CXX="+script)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wait.Wait()
	runs, _ := os.ReadFile(log)
	if n := strings.Count(string(runs), "compiled"); n != 1 {
		t.Errorf("compiled %d times", n)
	}
	if names := libraries(t, dir); len(names) != 1 {
		t.Errorf("the cache holds %v", names)
	}
}

// Goroutines share a compilation likewise.
func TestCacheParallel(t *testing.T) {
	tempCache(t)
	var wait sync.WaitGroup
	paths := make([]string, 8)
	for i := range paths {
		wait.Go(func() {
			var err error
			if paths[i], err = compileMetal(tiny, dialect{fastMath: i%2 == 1, language: 310}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for i, p := range paths {
		if p != paths[i%2] {
			t.Errorf("%s and %s", p, paths[i%2])
		}
	}
}

func TestCacheTidy(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{"a.so": 3 * time.Hour, "b.so": 2 * time.Hour, "c.so": time.Hour, "d.so": 0, "old.lock": 2 * time.Hour, "new.lock": 0, "note": 5 * time.Hour} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, 100), 0o700); err != nil {
			t.Fatal(err)
		}
		os.Chtimes(path, now.Add(-age), now.Add(-age))
	}
	os.Mkdir(filepath.Join(dir, "build-1"), 0o700)
	os.Chtimes(filepath.Join(dir, "build-1"), now.Add(-2*time.Hour), now.Add(-2*time.Hour))
	tidy(dir, 250, filepath.Join(dir, "a.so"))
	if got := strings.Join(libraries(t, dir), " "); got != "a.so d.so new.lock note" {
		t.Errorf("left: %s", got)
	}
}

func TestNoCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("LLMRUN_CXX", "")
	_, err := Library()
	var none *NoCompilerError
	if !errors.As(err, &none) || err.Error() != "host Metal device: no C++ compiler found, tried g++, clang++, c++" || none.Hint() == "" {
		t.Errorf("got %v", err)
	}
	t.Setenv("LLMRUN_CXX", "no-such-compiler")
	if _, err := Library(); !errors.As(err, &none) || !strings.Contains(err.Error(), "tried no-such-compiler") || !strings.Contains(none.Hint(), "LLMRUN_CXX") {
		t.Errorf("got %v", err)
	}
	for release, want := range map[string]string{
		"NAME=\"Debian\"\nID=debian\n":                 "sudo apt-get install g++",
		"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n":    "sudo apt-get install g++",
		"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"": "sudo dnf install gcc-c++",
		"": "install g++ or clang++, or set LLMRUN_CXX to one",
	} {
		if got := installHint(release); got != want {
			t.Errorf("%q: %s", release, got)
		}
	}
}
