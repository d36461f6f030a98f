package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"llmrun/internal/models"
)

func newModelsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "models", Short: "list the models that --model can name, and where they are", Args: noArguments("llmrun help"),
		RunE: func(*cobra.Command, []string) error {
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			for _, f := range models.List() {
				state := fmt.Sprintf("%.1f MB", float64(f.Size)/1e6)
				switch {
				case !f.Converted():
					state = "not converted"
				case !f.Tokenizer:
					state += ", no tokenizer.json"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Name, state, f.Place, f.Dir)
			}
			return w.Flush()
		},
	}
}
