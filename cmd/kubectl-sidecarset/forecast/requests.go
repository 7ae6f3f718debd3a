package forecast

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	podresource "k8s.io/component-helpers/resource"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/world"
)

// Requests are what Pods request more than now, or less.
type Requests struct {
	// InPlace are those of the Pods that are resized, and Recreated those of the Pods that get
	// the content when they are recreated.
	InPlace   Amount `json:"inPlace"`
	Recreated Amount `json:"recreated"`
	// Nodes have both, as if each new Pod came to the Node of the old one, the most cpu first.
	Nodes []*NodeAmount `json:"nodes,omitempty"`
}

// Amount is cpu and memory of a number of Pods.
type Amount struct {
	Pods   int               `json:"pods"`
	CPU    resource.Quantity `json:"cpu"`
	Memory resource.Quantity `json:"memory"`
}

// NodeAmount is an Amount on one Node.
type NodeAmount struct {
	Node string `json:"node"`
	Amount
}

func (a *Amount) add(b Amount) {
	a.Pods += b.Pods
	a.CPU.Add(b.CPU)
	a.Memory.Add(b.Memory)
}

// Zero reports whether nothing is requested more or less.
func (a *Amount) Zero() bool { return a.CPU.IsZero() && a.Memory.IsZero() }

// requests adds up what Pods request more; nil if that is nothing.
func requests(pods []*pod) *Requests {
	sum := &Requests{}
	nodes := map[string]*NodeAmount{}
	for _, p := range pods {
		var part *Amount
		switch p.fate {
		case Resize:
			part = &sum.InPlace
		case Recreate, Selected, Uninjected:
			part = &sum.Recreated
		}
		if part == nil || p.replacement == nil {
			continue
		}
		old := podresource.PodRequests(p.Pod, podresource.PodResourcesOptions{})
		now := podresource.PodRequests(p.replacement, podresource.PodResourcesOptions{})
		a := Amount{Pods: 1, CPU: now.Cpu().DeepCopy(), Memory: now.Memory().DeepCopy()}
		a.CPU.Sub(*old.Cpu())
		a.Memory.Sub(*old.Memory())
		if part.add(a); p.Spec.NodeName == "" || a.Zero() {
			continue
		}
		if nodes[p.Spec.NodeName] == nil {
			nodes[p.Spec.NodeName] = &NodeAmount{Node: p.Spec.NodeName}
		}
		nodes[p.Spec.NodeName].add(a)
	}
	if sum.InPlace.Zero() && sum.Recreated.Zero() {
		return nil
	}
	sum.Nodes = slices.SortedFunc(maps.Values(nodes), func(a, b *NodeAmount) int {
		return cmp.Or(b.CPU.Cmp(a.CPU), b.Memory.Cmp(a.Memory), cmp.Compare(a.Node, b.Node))
	})
	return sum
}

// replace asks the engine of the webhook for the Pod that would be created in place of another
// one.
func (f *forecast) replace(ctx context.Context, p *pod) (world.Decision, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.Pod)
	if err != nil {
		return world.Decision{}, err
	}
	decision, err := f.After.Decide(ctx, p.Namespace, object)
	if err != nil {
		return decision, err
	}
	if p.refused = decision.Refused; p.refused != nil {
		return decision, nil //nolint:nilerr // a refusal is a decision
	}
	p.replacement = p.Pod
	if operations := decision.Patch(); operations != nil {
		text, err := json.Marshal(object)
		if err != nil {
			return decision, err
		}
		patch, err := jsonpatch.DecodePatch(operations)
		if err != nil {
			return decision, err
		}
		if text, err = patch.Apply(text); err != nil {
			return decision, err
		}
		p.replacement = &corev1.Pod{}
		return decision, json.Unmarshal(text, p.replacement)
	}
	return decision, nil
}
