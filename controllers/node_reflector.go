package controllers

import (
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tracker"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=nodes,verbs=list;watch

// newNodeListerWatcher lists and watches all Nodes.
func newNodeListerWatcher(config *rest.Config, httpClient *http.Client) (cache.ListerWatcher, error) {
	client, err := newProtobufClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	return cache.NewListWatchFromClient(client.RESTClient(), "nodes", metav1.NamespaceAll, fields.Everything()), nil
}

// node is what is kept of a Node.
type node struct {
	name  string
	state inplace.Node
}

// GetObjectMeta lets client-go's stores compute the key.
func (n node) GetObjectMeta() metav1.Object { return &metav1.ObjectMeta{Name: n.name} }

func nodeOf(obj any) (node, error) {
	switch o := obj.(type) {
	case *corev1.Node:
		return node{o.Name, inplace.NodeOf(o)}, nil
	case node:
		return o, nil
	}
	return node{}, fmt.Errorf("reading a Node: unexpected %T", obj)
}

// nodeStore is where the reflector puts Nodes: they go to the tracker's goroutine.
type nodeStore struct {
	do func(func(*tracker.Tracker)) error
}

var _ cache.TransformingStore = nodeStore{}

// Transformer makes the reflector's own store keep nothing else of Nodes.
func (nodeStore) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return nodeOf(obj) }
}

// Add takes a Node that is new to the watch.
func (s nodeStore) Add(obj any) error { return s.Update(obj) }

// Update takes a Node that changed.
func (s nodeStore) Update(obj any) error {
	n, err := nodeOf(obj)
	if err != nil {
		return err
	}
	return s.do(func(t *tracker.Tracker) { t.SetNode(podstate.MakeName(n.name), &n.state) })
}

// Delete takes a Node that was deleted.
func (s nodeStore) Delete(obj any) error {
	n, err := nodeOf(obj)
	if err != nil {
		return err
	}
	return s.do(func(t *tracker.Tracker) { t.SetNode(podstate.MakeName(n.name), nil) })
}

// Replace takes a complete list of Nodes.
func (s nodeStore) Replace(list []any, _ string) error {
	all := make(map[podstate.Name]inplace.Node, len(list))
	for _, obj := range list {
		n, err := nodeOf(obj)
		if err != nil {
			return err
		}
		all[podstate.MakeName(n.name)] = n.state
	}
	return s.do(func(t *tracker.Tracker) { t.SetNodes(all) })
}

// Resync does nothing: the tracker has kept every Node.
func (nodeStore) Resync() error { return nil }
