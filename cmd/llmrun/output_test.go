package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// write puts text into file as a command's answer.
func write(t *testing.T, file, text string, keep bool) {
	t.Helper()
	w, done, err := (&app{}).answer(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := done(keep); err != nil {
		t.Fatal(err)
	}
}

func TestAnswerKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	file, link, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	holds := func(want string) {
		t.Helper()
		if data, err := os.ReadFile(file); string(data) != want || err != nil {
			t.Errorf("want %q, got %q (%v)", want, data, err)
		}
	}
	write(t, link, "half", false)
	holds("old")
	write(t, link, "new", true)
	holds("new")
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v now (%v)", info.Mode(), err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("want mode 600, got %v (%v)", info.Mode(), err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() {
		data, _ := os.ReadFile(pipe)
		read <- string(data)
	}()
	write(t, pipe, "through", true)
	if got := <-read; got != "through" {
		t.Errorf("pipe: got %q", got)
	}
	write(t, os.DevNull, "gone", true)
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Fatalf("%s is %v (%v)", os.DevNull, info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.part")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestOutputsAreRefusedEarly(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"generate", "-p", "x", "-o", dir}, "is a directory"},
		{[]string{"generate", "-p", "x", "-o", filepath.Join(dir, "no", "x")}, "there is no directory"},
		{[]string{"compare", "-o", filepath.Join(dir, "a"), "--html", filepath.Join(dir, "a")}, "--output and --html: want two files"},
		{[]string{"compare", "--fault", ""}, "--fault: want a value, got an empty one"},
		{[]string{"compare", "-p", ""}, "--prompt: want a value, got an empty one"},
		{[]string{"generate", "Once"}, `want flags only, got "Once"` + "\nhint: llmrun generate -p"},
		{[]string{"generate", "-p", "x", "--trace-file", filepath.Join(dir, "t")}, "--trace-file: want --trace"},
		{[]string{"generate", "-p", "x", "-n", "1000000000000"}, "bytes"},
	} {
		out, talk, exit := command("", c.args...)
		if exit != exitCannotRun || out != "" || !strings.Contains(talk, c.want) {
			t.Errorf("%v: want exit 2 and %q, got exit %d, %q and %q", c.args, c.want, exit, out, talk)
		}
	}
}
