package restart

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// MissingRights names what the user may not do of what the work on these workloads needs.
func MissingRights(ctx context.Context, c client.Client, workloads []*Workload) (missing []string, err error) {
	var asked []authorizationv1.ResourceAttributes
	for _, w := range workloads {
		needs := []authorizationv1.ResourceAttributes{{Verb: "create", Resource: "pods", Subresource: "eviction"}}
		if !w.Evict {
			needs = append(needs, authorizationv1.ResourceAttributes{Verb: "patch", Group: "apps", Resource: strings.ToLower(w.Kind) + "s"})
		}
		for _, need := range needs {
			if need.Namespace = w.Namespace; slices.Contains(asked, need) {
				continue
			}
			asked = append(asked, need)
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &need}}
			if err := c.Create(ctx, review); err != nil {
				return nil, fmt.Errorf("asking what you may do: %w", err)
			}
			if !review.Status.Allowed {
				resource := strings.TrimSuffix(need.Resource+"/"+need.Subresource, "/")
				if need.Group != "" {
					resource += "." + need.Group
				}
				missing = append(missing, need.Verb+" "+resource+" in namespace "+need.Namespace)
			}
		}
	}
	return missing, nil
}
