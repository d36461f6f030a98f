package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/cobra"
)

func init() { os.Unsetenv("GITHUB_ACTIONS") } // these tests' comparisons are no job's result

// TestFaces: one run writes every face, and the answer stays alone on stdout.
func TestFaces(t *testing.T) {
	dir := t.TempDir()
	page, junit, summary := filepath.Join(dir, "page.html"), filepath.Join(dir, "junit.xml"), filepath.Join(dir, "summary.md")
	if err := os.WriteFile(summary, []byte("a step before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GITHUB_STEP_SUMMARY", summary)
	t.Setenv("GITHUB_ACTIONS", "true")
	var stdout, stderr bytes.Buffer
	args := []string{"compare", "--candidate", "cpu", "--ids", "2,296,1402,657,338,563", "-n", "10", "--html", page, "--junit", junit}
	if code := run(args, strings.NewReader(""), &stdout, &stderr); code != exitDone {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	if s := stdout.String(); strings.Contains(s, "::") || !strings.Contains(s, "verdict       MATCH") {
		t.Errorf("stdout: %s", s)
	}
	if s := stderr.String(); !strings.HasPrefix(s, "::notice title=llmrun compare%3A MATCH::") {
		t.Errorf("stderr: %s", s)
	}
	for file, want := range map[string]string{
		page:    "llmrun compare --candidate=cpu --ids=2,296,1402,657,338,563 --max-tokens=10</code>",
		junit:   `<property name="verdict" value="MATCH"></property>`,
		summary: "a step before\n## ✓ MATCH: llmrun compare tiny-gemma2\n",
	} {
		data, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(data), want) {
			t.Errorf("want %q: %v in %s", want, err, data)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 3 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

// TestFacesNowhere: a file that cannot be written is known before the work is done.
func TestFacesNowhere(t *testing.T) {
	for _, flag := range []string{"--html", "--junit"} {
		var stdout, stderr bytes.Buffer
		if code := run([]string{"compare", flag, filepath.Join(t.TempDir(), "none", "x")}, strings.NewReader(""), &stdout, &stderr); code != exitCannotRun ||
			stdout.Len() > 0 || !strings.Contains(stderr.String(), "compare: "+flag) {
			t.Errorf("%s: exit %d: %s%s", flag, code, stderr.String(), stdout.String())
		}
	}
}

// TestCommandLine: what is typed from a page does what made the page.
func TestCommandLine(t *testing.T) {
	c := &cobra.Command{Use: "x"}
	flags := c.Flags()
	var f faceFlags
	f.register(flags)
	flags.String("prompt", "", "")
	flags.String("model", "", "")
	flags.Bool("strict", false, "")
	flags.Bool("json", false, "")
	if err := flags.Parse([]string{"--json", "--html=x", "--strict", "--prompt=it's $5", "--model", "a/b"}); err != nil {
		t.Fatal(err)
	}
	command, replay := commandLine(flags)
	if want := `llmrun compare --model=a/b --prompt='it'\''s $5' --strict`; command != want {
		t.Errorf("want %s, got %s", want, command)
	}
	if want := "llmrun compare --model=a/b --strict"; replay != want {
		t.Errorf("want %s, got %s", want, replay)
	}
}

// TestPublishedSchema: what the program prints is what docs/schema promises, with the sides followed and with a prompt that proves nothing.
func TestPublishedSchema(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile("../../docs/schema/compare-1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		exit int
		args []string
	}{
		{exitDone, []string{"--ids", "2,296,1402,657,338,563", "-n", "4"}},
		{exitInconclusive, []string{"--ids", "1402", "-n", "9", "--shadow", "off", "--legs", "off"}},
	} {
		var stdout, stderr bytes.Buffer
		args := append([]string{"compare", "--candidate", "cpu", "--json"}, test.args...)
		if code := run(args, strings.NewReader(""), &stdout, &stderr); code != test.exit {
			t.Fatalf("%v: want exit %d, got %d: %s", args, test.exit, code, stderr.String())
		}
		value, err := jsonschema.UnmarshalJSON(&stdout)
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}
