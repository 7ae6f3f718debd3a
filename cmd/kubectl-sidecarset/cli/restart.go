package cli

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/progress"
	"github.com/sidecarset/operator/internal/recreate"
)

func (a *app) rolloutRestart() *cobra.Command {
	var timeout time.Duration
	c := a.verb(&cobra.Command{
		Use:   "restart NAME",
		Short: "Recreate the Pods that cannot be updated in place or lack sidecars",
		Long: `Recreate the Pods that cannot be updated in place, and those that lack sidecars. Other Pods are
not touched, nor those that no controller would replace. kubectl sidecarset status names these Pods.

The leader evicts them, within maxUnavailable, PodDisruptionBudgets and the other limits of a
rollout. The command sets the annotation sidecarset.io/recreate, follows the leader, and puts the
annotation back when the leader has done what it can, after --timeout, or when it is interrupted.
The operator needs the right to evict Pods, which config/overlays/recreate has.`,
	}, func(ctx context.Context, c client.Client, name string, _ []string) error {
		return a.restart(ctx, c, name, timeout)
	})
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait, such as 10m; 0 means without end")
	return c
}

// patience is how long the leader may take until it evicts the first Pod, or says what it waits for.
const patience = time.Minute

// restart lets the leader evict, and follows it.
func (a *app) restart(ctx context.Context, c client.Client, name string, timeout time.Duration) (err error) {
	first, err := summaryOf(ctx, c, name)
	if err != nil {
		return err
	}
	switch _, message, problem := first.Outcome(); {
	case problem != nil && first.Rollout.Reason != appsv1beta1.ReasonBlocked:
		return fmt.Errorf("the leader evicts no Pods of SidecarSet %q now: %w", name, problem)
	case !first.Observed:
		return fmt.Errorf("the leader evicts no Pods of SidecarSet %q now: %s Try again", name, message)
	case first.Recreatable == 0:
		fmt.Fprintf(a.Out, "SidecarSet %q has no Pods to recreate\n", name)
		return nil
	}
	was := ""
	if err := a.setRecreate(ctx, c, name, func(now string) string {
		was = now
		return appsv1beta1.RecreateAll
	}); err != nil {
		return err
	}
	acts, began := was == appsv1beta1.RecreateAll, time.Now()
	if !acts {
		fmt.Fprintf(a.ErrOut, "The annotation %s is %s until this command ends.\n", appsv1beta1.AnnotationRecreate, appsv1beta1.RecreateAll)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if back := a.setRecreate(ctx, c, name, func(now string) string {
			if now == appsv1beta1.RecreateAll {
				return was
			}
			return now // another author has changed it
		}); back != nil {
			err = errors.Join(err, fmt.Errorf("put back %s of SidecarSet %q, which was %q: %w", appsv1beta1.AnnotationRecreate, name, was, back))
		}
	}()
	return a.await(ctx, c, name, timeout, func(s *progress.Summary) (bool, error) {
		// What the leader says after it has read the annotation is something else, or about other Pods.
		acts = acts || !reflect.DeepEqual([]any{first.Rollout, first.Blocked, first.Uninjected}, []any{s.Rollout, s.Blocked, s.Uninjected})
		if time.Since(began) < patience || s.UpdatedPods != first.UpdatedPods || s.UninjectedPods != first.UninjectedPods {
			return acts, nil
		}
		refused := slices.ContainsFunc(s.Blocked, func(g progress.Group) bool { return g.Reason == string(recreate.EvictionRefused) })
		switch {
		case refused:
			return false, fmt.Errorf("no Pod of SidecarSet %q was evicted: %s", name, s.Problem())
		case !acts:
			return false, fmt.Errorf("no Pod of SidecarSet %q was evicted within %s. The leader evicts only Pods that a controller replaces: delete others, and create them again. kubectl sidecarset doctor says whether the leader runs", name, patience)
		}
		return true, nil
	})
}

// setRecreate changes the annotation that lets the leader evict; "" means that it is absent.
func (a *app) setRecreate(ctx context.Context, c client.Client, name string, to func(now string) string) error {
	return a.edit(ctx, c, name, "none", func(object *unstructured.Unstructured) (string, error) {
		annotations := object.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		now := annotations[appsv1beta1.AnnotationRecreate]
		if next := to(now); next == "" {
			delete(annotations, appsv1beta1.AnnotationRecreate)
		} else {
			annotations[appsv1beta1.AnnotationRecreate] = next
		}
		object.SetAnnotations(annotations)
		return "", nil
	})
}
