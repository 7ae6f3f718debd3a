package doctor

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lookAtSecret finds out whether the leader can rotate the CA.
func (f *facts) lookAtSecret(ctx context.Context, r *Result) {
	if f.flag("cert-mode", "self") != "self" {
		return
	}
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: f.namespace, Name: f.flag("cert-secret", "sidecarset-webhook-certs")}
	if err := f.Client.Get(ctx, key, secret); err != nil {
		if client.IgnoreNotFound(err) != nil {
			r.skip(fmt.Errorf("the CA in Secret %s: %w", key, err))
		}
		return // the leader makes it
	}
	if secret.Immutable != nil && *secret.Immutable {
		r.add(Error, "Secret "+key.String(), "docs/certificates.md#mode-self", fmt.Sprintf("kubectl -n %s delete secret %s", key.Namespace, key.Name),
			"is immutable, so the leader cannot rotate the CA, nor replace it if it is damaged; it makes another Secret when this one is deleted, and no call fails")
	}
}
