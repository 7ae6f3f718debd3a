package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/internal/inject"
)

// maxUninjected is how many Namespaces are named.
const maxUninjected = 50

// missing is a ConfigMap or Secret that the sidecars cannot start without, and that Namespaces lack.
type missing struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Namespaces are the first that lack it, of those that the SidecarSet selects by their labels, or else
	// that have Pods for it; More counts the others.
	Namespaces []string `json:"namespaces,omitempty"`
	More       int      `json:"more,omitempty"`
	// Unknown says why the Namespaces are not known; "" if they are.
	Unknown string `json:"unknown,omitempty"`
}

func (m *missing) String() string {
	what := m.Kind + " " + m.Name
	if m.Unknown != "" {
		return "the sidecars need " + what + "; which namespaces have it is not known: " + m.Unknown
	}
	text := "the sidecars need " + what + ", and do not start in namespaces that lack it: " + strings.Join(m.Namespaces, ", ")
	if m.More > 0 {
		text += fmt.Sprintf(" and %d more", m.More)
	}
	return text
}

// missing finds what Namespaces of a SidecarSet lack. It reads metadata only.
func (p *planner) missing(ctx context.Context, compiled *inject.Compiled, revision corev1.PodSpec, excluded inject.Exclusions, pods []*corev1.Pod) (all []*missing) {
	in := map[string]bool{}
	if compiled.NamespaceSelector.Empty() {
		for _, pod := range pods {
			in[pod.Namespace] = in[pod.Namespace] || compiled.Selector.Matches(labels.Set(pod.Labels))
		}
	} else {
		for name, set := range p.parts.Namespaces {
			in[name] = compiled.NamespaceSelector.Matches(set)
		}
	}
	maps.DeleteFunc(in, func(name string, is bool) bool { return !is || excluded.Namespace(name) })
	for _, ref := range explain.References(revision.Containers, revision.Volumes) {
		if len(in) == 0 {
			break
		}
		m := &missing{Kind: ref.Kind, Name: ref.Name}
		uninjected := maps.Clone(in)
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(ref.Kind))
		err := each(ctx, p.client, io.Discard, ref.Kind+"s", list, func() {
			for i := range list.Items {
				delete(uninjected, list.Items[i].Namespace)
			}
		}, client.MatchingFields{metav1.ObjectNameField: ref.Name})
		if err != nil {
			m.Unknown = err.Error()
		} else if len(uninjected) == 0 {
			continue
		} else {
			names := slices.Sorted(maps.Keys(uninjected))
			m.Namespaces = names[:min(maxUninjected, len(names))]
			m.More = len(names) - len(m.Namespaces)
		}
		all = append(all, m)
	}
	return all
}
