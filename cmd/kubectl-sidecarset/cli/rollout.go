package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/doctor"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/progress"
	"github.com/sidecarset/operator/internal/hub"
)

// verb completes a command about one SidecarSet, NAME or sidecarset/NAME, of the cluster. more are
// the arguments after it; Args is arguments(1, 1) unless it is set. Without a name, name is "".
func (a *app) verb(c *cobra.Command, run func(ctx context.Context, c client.Client, name string, more []string) error) *cobra.Command {
	if c.Args == nil {
		c.Args = arguments(1, 1)
	}
	c.ValidArgsFunction = func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeSidecarSets(c, args, prefix)
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		cluster, _, err := a.client()
		if err != nil {
			return err
		}
		name := ""
		if len(args) > 0 {
			name, args = args[0], args[1:]
		}
		if kind, after, _ := strings.Cut(name, "/"); after != "" && strings.HasPrefix(kind, "sidecarset") {
			name = after
		}
		var lease coordinationv1.Lease
		key := client.ObjectKey{Namespace: a.operatorNamespace, Name: doctor.LeaseName}
		if cluster.Get(c.Context(), key, &lease) == nil && !doctor.Leads(&lease) { // who may not read it is not told
			fmt.Fprintf(a.ErrOut, "warning: no process of the operator leads, so the status is old and nothing is rolled out: kubectl sidecarset doctor says why\n")
		}
		return run(c.Context(), cluster, name, args)
	}
	return c
}

func (a *app) rollout() *cobra.Command {
	c := group(&cobra.Command{
		Use:   "rollout",
		Short: "Follow, pause and undo the rollout of a SidecarSet, and restart workloads for it",
		Example: `  kubectl sidecarset rollout status log-agent --timeout 10m
  kubectl sidecarset rollout undo log-agent`,
	})
	c.AddCommand(a.rolloutStatus(), a.rolloutHistory(), a.rolloutUndo(), a.rolloutPaused(true), a.rolloutPaused(false), a.rolloutRestart())
	return c
}

func (a *app) rolloutStatus() *cobra.Command {
	var timeout time.Duration
	c := a.verb(&cobra.Command{
		Use:   "status NAME",
		Short: "Wait until a rollout is complete",
		Long: `Wait until all running Pods are updated, or all that partition and selector do not exclude.

The exit code is 0 then. It is 1 if the rollout does not go on before a user acts, for example
because it is stalled or paused, or because Pods cannot be updated; and after --timeout. Causes that
end by themselves are waited for.`,
	}, func(ctx context.Context, c client.Client, name string, _ []string) error {
		return a.await(ctx, c, name, timeout)
	})
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait, such as 10m; 0 means without end")
	return c
}

// await follows a rollout and says where it is, until it is done or does not continue.
func (a *app) await(ctx context.Context, c client.Client, name string, timeout time.Duration) error {
	said := "the leader has not acted yet"
	err := a.follow(ctx, c, name, timeout, func(s *progress.Summary) (bool, error) {
		done, message, err := s.Outcome()
		switch {
		case err != nil:
			return false, fmt.Errorf("the rollout of SidecarSet %q does not go on: %w", name, err)
		case done:
			fmt.Fprintf(a.Out, "sidecarset %q successfully rolled out: %s\n", name, message)
		case message != said:
			fmt.Fprintf(a.Out, "Waiting for the rollout of %q to finish: %s\n", name, message)
			said = message
		}
		return done, nil
	})
	if wait.Interrupted(err) { // by --timeout or the user
		return fmt.Errorf("gave up waiting for the rollout of SidecarSet %q: %s", name, said)
	}
	return err
}

// mostFailures is how many reads in a row may fail while a rollout is followed.
const mostFailures = 10

// follow calls see for a SidecarSet once a second until see returns true, for a time; 0 means
// without end.
func (a *app) follow(ctx context.Context, c client.Client, name string, timeout time.Duration, see func(*progress.Summary) (done bool, err error)) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	deadline, limited := ctx.Deadline()
	failed := mostFailures // the first may not
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		s, err := summaryOf(ctx, c, name)
		switch {
		case err == nil:
			failed = 0
			return see(s)
		case ctx.Err() != nil:
			return false, ctx.Err()
		case limited && !time.Now().Before(deadline): // the client detects it earlier than ctx
			return false, context.DeadlineExceeded
		case failed == mostFailures || apierrors.IsNotFound(err):
			return false, err
		}
		failed++
		fmt.Fprintln(a.ErrOut, "trying again:", err)
		return false, nil
	})
}

// typedSet reads a SidecarSet.
func typedSet(ctx context.Context, c client.Client, name string) (*appsv1beta1.SidecarSet, error) {
	object, err := sidecarSet(ctx, c, name)
	if err != nil {
		return nil, err
	}
	set, err := hub.Typed(object.Object)
	if err != nil {
		return nil, fmt.Errorf("reading SidecarSet %q: %w", name, err)
	}
	return set, nil
}

// summaryOf reads a SidecarSet and sums it up.
func summaryOf(ctx context.Context, c client.Client, name string) (*progress.Summary, error) {
	set, err := typedSet(ctx, c, name)
	if err != nil {
		return nil, err
	}
	return progress.Of(set), nil
}

func (a *app) rolloutPaused(pause bool) *cobra.Command {
	use, short, said := "pause", "Stop updating running Pods", "paused; running Pods keep what they have, broken ones too, and new Pods get the current revision"
	if !pause {
		use, short, said = "resume", "Go on updating running Pods", "resumed"
	}
	return a.verb(&cobra.Command{
		Use:   use + " NAME",
		Short: short,
		Long:  short + ": set spec.updateStrategy.paused. New Pods get the current revision in either case.",
	}, func(ctx context.Context, c client.Client, name string, _ []string) error {
		return a.edit(ctx, c, name, "none", func(object *unstructured.Unstructured) (string, error) {
			if paused, _, _ := unstructured.NestedBool(object.Object, "spec", "updateStrategy", "paused"); paused == pause {
				return said, nil
			}
			return said, unstructured.SetNestedField(object.Object, pause, "spec", "updateStrategy", "paused")
		})
	})
}
