package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/rollout"
)

// longerMinReady names the workload of selected Pods that has the longest minReadySeconds, if that is
// longer than the SidecarSet's, because a rollout does not read it; "" if there is none.
func (p *planner) longerMinReady(ctx context.Context, compiled *inject.Compiled, pods []*corev1.Pod) string {
	if compiled.Set.Spec.UpdateStrategy.Type == appsv1beta1.NotUpdateSidecarSetStrategyType {
		return ""
	}
	type place struct{ kind, namespace string }
	owners, places := map[types.UID]bool{}, map[place]bool{}
	for _, pod := range pods {
		owner := metav1.GetControllerOf(pod)
		if owner != nil && owner.APIVersion == appsv1.SchemeGroupVersion.String() && compiled.Selector.Matches(labels.Set(pod.Labels)) {
			owners[owner.UID], places[place{owner.Kind, pod.Namespace}] = true, true
		}
	}
	ours := rollout.NewStrategy(compiled.Set).MinReadySeconds()
	longest, name := ours, ""
	inOrder := slices.SortedFunc(maps.Keys(places), func(a, b place) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.kind, b.kind))
	})
	for _, in := range inOrder {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(in.kind))
		err := each(ctx, p.client, io.Discard, in.kind+"s", list, func() {
			for i := range list.Items {
				o := &list.Items[i]
				seconds, _, _ := unstructured.NestedInt64(o.Object, "spec", "minReadySeconds")
				if !owners[o.GetUID()] || seconds <= longest {
					continue
				}
				longest, name = seconds, o.GetKind()+" "+in.namespace+"/"+o.GetName()
				if owner := metav1.GetControllerOf(o); owner != nil {
					name = owner.Kind + " " + in.namespace + "/" + owner.Name // the Deployment of a ReplicaSet
				}
			}
		}, client.InNamespace(in.namespace))
		if err != nil {
			return "the minReadySeconds of the Pods' workloads is not known: " + err.Error()
		}
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf("%s has minReadySeconds %d, which a rollout does not read: Pods are available after %d s. To wait as long, annotate the SidecarSet with %s: %q",
		name, longest, ours, appsv1beta1.AnnotationMinReadySeconds, fmt.Sprint(longest))
}
