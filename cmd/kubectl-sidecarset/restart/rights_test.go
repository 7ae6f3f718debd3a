package restart

import (
	"context"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestMissingRights(t *testing.T) {
	t.Parallel()
	web, db := &Workload{Kind: "Deployment", Namespace: "shop", Name: "web"}, &Workload{Kind: "StatefulSet", Namespace: "shop", Name: "db", Evict: true}
	tests := map[string]struct {
		allowed []string // verbs
		want    []string
	}{
		"all are there": {[]string{"create", "patch"}, nil},
		"no restarts":   {[]string{"create"}, []string{"patch deployments.apps in namespace shop"}},
		"nothing":       {nil, []string{"create pods/eviction in namespace shop", "patch deployments.apps in namespace shop"}},
	}
	for name, tc := range tests {
		c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
				review := object.(*authorizationv1.SelfSubjectAccessReview)
				review.Status.Allowed = slices.Contains(tc.allowed, review.Spec.ResourceAttributes.Verb)
				return nil
			},
		}).Build()
		if got, err := MissingRights(t.Context(), c, []*Workload{web, db}); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tc.want)
		}
	}
}
