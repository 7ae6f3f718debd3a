package executor

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=nodes,verbs=get

const (
	// nodeAge is the largest age of a remembered Node, and maxNodes the largest number
	// of remembered Nodes.
	nodeAge, maxNodes = 10 * time.Second, 10_000
)

// nodes remembers Nodes for a short time.
type nodes struct {
	client corev1client.NodesGetter
	known  *cache.LRUExpireCache // inplace.Node by name
}

func newNodes(client corev1client.NodesGetter) *nodes {
	return &nodes{client, cache.NewLRUExpireCache(maxNodes)}
}

// get reads the Node with this name, or returns a read that is at most nodeAge old. A
// Node that does not exist is not ready.
func (n *nodes) get(ctx context.Context, name string) (inplace.Node, error) {
	if known, ok := n.known.Get(name); ok {
		return known.(inplace.Node), nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	began := time.Now()
	object, err := n.client.Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		object = nil
	case err != nil:
		return inplace.Node{}, err
	}
	found := inplace.NodeOf(object)
	n.known.Add(name, found, nodeAge-time.Since(began))
	return found, nil
}

// lookAtNodes finds Pods that count and whose Node is not ready or gone, so that they no
// longer count against the budget.
func (e *Executor) lookAtNodes(ctx context.Context, sidecarSet string) error {
	var overdue []*podstate.Record
	if err := e.Tally(ctx, func(t *tally.Tally) { overdue = t.Overdue(sidecarSet, writesInAll) }); err != nil {
		return err
	}
	for _, record := range overdue {
		e.run(ctx, sidecarSet, func(ctx context.Context) {
			if err := e.lookAtNode(ctx, record); err != nil && ctx.Err() == nil {
				log.FromContext(ctx).V(1).Info("Looking at the Node of a Pod failed", "Pod", record.Namespace.Value()+"/"+record.Name, "error", err.Error())
			}
		})
	}
	return nil
}

func (e *Executor) lookAtNode(ctx context.Context, record *podstate.Record) error {
	pod, err := e.read(ctx, record.Namespace.Value(), record.Name, true)
	if err != nil || pod.UID != record.UID || pod.Spec.NodeName == "" {
		return err
	}
	node, err := e.nodes.get(ctx, pod.Spec.NodeName)
	if err != nil || !node.NotReady {
		return err
	}
	return e.Tally(ctx, func(t *tally.Tally) { t.Lost(record.Namespace, record.Name, record.UID) })
}
