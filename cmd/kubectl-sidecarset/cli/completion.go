package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// completer is the program that kubectl asks for completions of its plugin.
const completer = `#!/bin/sh
exec kubectl-sidecarset __complete "$@"
`

func (a *app) completion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion kubectl|bash|zsh|fish|powershell",
		Short: "Print what completes commands, flags and names in your shell",
		Long: `Print what completes commands, flags and names in your shell.

If kubectl's own completion works in your shell, kubectl asks a program kubectl_complete-sidecarset
in your PATH for the rest of "kubectl sidecarset ...". "completion kubectl" prints this program; make
it executable. The other arguments print a script for a shell in which you call kubectl-sidecarset
itself.`,
		Example: `  kubectl sidecarset completion kubectl >~/bin/kubectl_complete-sidecarset && chmod +x ~/bin/kubectl_complete-sidecarset
  source <(kubectl sidecarset completion bash)`,
		Args:      cobra.MatchAll(arguments(1, 1), cobra.OnlyValidArgs),
		ValidArgs: []string{"kubectl", "bash", "zsh", "fish", "powershell"},
		RunE: func(c *cobra.Command, args []string) error {
			switch root := c.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.Out, true)
			case "zsh":
				return root.GenZshCompletion(a.Out)
			case "fish":
				return root.GenFishCompletion(a.Out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.Out)
			}
			_, err := fmt.Fprint(a.Out, completer)
			return err
		},
	}
}
