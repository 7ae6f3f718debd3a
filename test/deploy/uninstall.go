package deploy

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
)

// Uninstall deletes what was applied, as kubectl delete does, and returns when it is gone. The caller has stopped
// the replicas. Without a controller-manager, no Namespace goes: it stays, without what the operator keeps there.
func (o *Operator) Uninstall(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	_, err := o.Clients.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	full := !apierrors.IsNotFound(err) // a controller-manager creates it
	err = o.each(func(api client.Client, object *unstructured.Unstructured) error {
		if object.GetKind() != "Namespace" || full {
			return client.IgnoreNotFound(api.Delete(ctx, object))
		}
		for _, kept := range []client.Object{&corev1.Secret{}, &coordinationv1.Lease{}, &appsv1.ControllerRevision{}, &discoveryv1.EndpointSlice{}} {
			if err := api.DeleteAllOf(ctx, kept, client.InNamespace(object.GetName())); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("deleting %w", err)
	}
	return await.Until(ctx, func(ctx context.Context) error {
		return o.each(func(api client.Client, object *unstructured.Unstructured) error {
			if object.GetKind() == "Namespace" && !full {
				return nil
			}
			err := api.Get(ctx, client.ObjectKeyFromObject(object), object)
			if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it is there"))
		})
	})
}
