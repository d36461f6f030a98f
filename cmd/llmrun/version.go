package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: noArguments("llmrun help"),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(a.stdout, versionLine())
			return err
		},
	}
}

// versionLine is what llmrun version and llmrun --version print.
func versionLine() string {
	return fmt.Sprintln("llmrun", version(), runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
}

// version is what the Go tool wrote into the program: a module version, else the commit, else "development".
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "development"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return s.Value[:12]
		}
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	return "development"
}
