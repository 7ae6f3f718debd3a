package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/sample"
)

// maxTried is how many Pods are tried.
const maxTried = 200

// place is a Namespace that a SidecarSet selects.
type place struct {
	compiled  *inject.Compiled
	namespace string
}

// lookAtInjection creates Pods under dry-run: one for each SidecarSet, and one more in each
// Namespace that has a LimitRange or a ResourceQuota. So it tries the webhooks and policies of
// other programs, too. The level of Pod Security of the other Namespaces is in the message of
// Ready.
func (f *facts) lookAtInjection(ctx context.Context, r *Result) {
	w := clusterview.New(f.parts)
	limited, err := f.limited(ctx)
	if err != nil {
		r.skip(err)
	}
	var all, more []place
	for _, compiled := range w.Snapshot.SidecarSets() {
		names := slices.DeleteFunc(slices.Sorted(w.Snapshot.NamespacesWith(compiled.NamespaceSelector)), w.Excluded.Namespace)
		for i, name := range names {
			if i == 0 {
				all = append(all, place{compiled, name})
			} else if limited[name] {
				more = append(more, place{compiled, name})
			}
		}
	}
	all = append(all, more...)
	for i, p := range all {
		if i == maxTried || ctx.Err() != nil {
			r.skip(fmt.Errorf("only %d of %d Pods were tried: one for each SidecarSet, and one for each of its namespaces with limits", i, len(all)))
			return
		}
		if err := f.try(ctx, w, p, r); err != nil {
			r.skip(fmt.Errorf("%s: %w", p, err))
		}
	}
}

func (p place) String() string {
	return fmt.Sprintf("SidecarSet %s in namespace %s", p.compiled.Name(), p.namespace)
}

// limited returns the Namespaces with a LimitRange or a ResourceQuota.
func (f *facts) limited(ctx context.Context) (map[string]bool, error) {
	limited := map[string]bool{}
	for _, kind := range []string{"LimitRange", "ResourceQuota"} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		if err := f.Client.List(ctx, list); err != nil {
			return limited, fmt.Errorf("where there are limits is not known: %w", err)
		}
		for i := range list.Items {
			limited[list.Items[i].Namespace] = true
		}
	}
	return limited, nil
}

// probe is a sample Pod with resources, which quotas demand.
func probe(namespace string, labels map[string]string) *corev1.Pod {
	pod := sample.Pod(namespace, labels)
	few := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: few, Limits: few}
	return pod
}

// try creates a Pod under dry-run. If it is refused, it tries the same Pod without sidecars.
func (f *facts) try(ctx context.Context, w *clusterview.View, p place, r *Result) error {
	name := p.compiled.Name()
	pod := probe(p.namespace, sample.Labels(p.compiled.Set.Spec.Selector))
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return err
	}
	decision, err := w.Decide(ctx, p.namespace, object)
	if err != nil {
		return err
	}
	if refused := f.Client.Create(ctx, pod, client.DryRunAll); refused != nil {
		return p.judge(refused, f.Client.Create(ctx, probe(p.namespace, nil), client.DryRunAll), r)
	}
	if slices.Contains(decision.Plan.Injected, name) && !slices.Contains(podstate.ParseInjectedList(pod.Annotations[appsv1beta1.AnnotationInjectedList]), name) {
		r.add(Error, p.String(), "docs/troubleshooting.md#a-pod-has-no-sidecar", "look at the other findings; if there are none: kubectl describe sidecarset "+name, "a selected Pod, tried under dry-run, was created without the sidecars")
	}
	return nil
}

// judge says why a Pod was refused. alone is the refusal of the same Pod without sidecars; if there
// is one, nothing is known about the SidecarSet.
func (p place) judge(refused, alone error, r *Result) error {
	switch text := refused.Error(); {
	case strings.Contains(text, "failed calling webhook") && strings.Contains(text, ".pods.sidecarset.io"):
		r.add(Error, p.String(), "docs/troubleshooting.md#failed-calling-webhook", "look at the check of the replicas, and at the leader's log for certificates; the page says how to let Pods through without sidecars", "API servers cannot call the operator, and refuse the Pods: %s", text)
	case alone != nil:
		return fmt.Errorf("a Pod without sidecars is refused there, too: %w", alone)
	default:
		r.add(Error, p.String(), "docs/troubleshooting.md#denied-the-request", "change the sidecars, or what refuses them; or let the SidecarSet not select the namespace", "a selected Pod is refused, and a Pod without sidecars is not: %s", text)
	}
	return nil
}
