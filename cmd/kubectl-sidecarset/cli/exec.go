package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

func (a *app) exec() *cobra.Command {
	var sidecar string
	c := &cobra.Command{
		Use:   "exec POD -c SIDECAR -- COMMAND",
		Short: "Run a command in a sidecar; of a hot-upgrade pair, in the container that works",
		Long: `Run a command in a sidecar with kubectl exec. A sidecar with upgradeType HotUpgrade has two
containers; the command runs in the one that works now.`,
		Example: `  kubectl sidecarset exec web-0 -c log-agent -it -- sh`,
		Args:    arguments(2, -1),
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.names(c.Context(), corev1.SchemeGroupVersion.WithKind("Pod")), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			cluster, _, err := a.client()
			if err != nil {
				return err
			}
			namespace, err := a.namespace()
			if err != nil {
				return err
			}
			var pod corev1.Pod
			name := strings.TrimPrefix(args[0], "pod/")
			if err := cluster.Get(c.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &pod); err != nil {
				return fmt.Errorf("reading Pod %s/%s: %w", namespace, name, err)
			}
			container := workingContainer(&pod, sidecar)
			if container != sidecar {
				fmt.Fprintf(a.ErrOut, "%s is a hot-upgrade sidecar; container %s works\n", sidecar, container)
			}
			arguments := append([]string{"exec", name}, given(c.Flags())...)
			arguments = append(arguments, "--container="+container, "--")
			return a.runKubectl(c.Context(), append(arguments, args[1:]...))
		},
	}
	c.Flags().StringVarP(&sidecar, "container", "c", "", "the `name` of the sidecar, as the SidecarSet has it")
	c.Flags().BoolP("stdin", "i", false, "pass standard input to the command")
	c.Flags().BoolP("tty", "t", false, "standard input is a terminal")
	_ = c.MarkFlagRequired("container") // the flag exists
	return c
}

// workingContainer returns the container of a Pod that does the work of a sidecar.
func workingContainer(pod *corev1.Pod, sidecar string) string {
	return cmp.Or(podstate.ParseTexts(pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer])[sidecar], sidecar)
}

// given returns the flags that kubectl has, too, as they were given.
func given(flags *pflag.FlagSet) (arguments []string) {
	flags.Visit(func(f *pflag.Flag) {
		if f.Name == "operator-namespace" || f.Name == "container" {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			arguments = append(arguments, "--"+f.Name+"="+value)
		}
	})
	return arguments
}

// runKubectl runs kubectl in place of this program. Signals reach both: kubectl ends as it likes.
func (a *app) runKubectl(ctx context.Context, args []string) error {
	kubectl := exec.CommandContext(context.WithoutCancel(ctx), "kubectl", args...)
	kubectl.Stdin, kubectl.Stdout, kubectl.Stderr = a.In, a.Out, a.ErrOut
	err := kubectl.Run()
	if ended, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit(ended.ExitCode())
	}
	if err != nil {
		return fmt.Errorf("running kubectl: %w", err)
	}
	return nil
}
