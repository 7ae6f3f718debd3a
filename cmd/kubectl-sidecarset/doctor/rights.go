package doctor

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/sidecarset/operator/config"
)

// right is one thing that a ServiceAccount of the operator must be allowed to do.
type right struct {
	account string
	authorizationv1.ResourceAttributes
}

func (r right) String() string {
	text := r.Verb + " " + r.Resource
	for _, part := range []struct{ before, of string }{{"/", r.Subresource}, {".", r.Group}, {" ", r.Name}, {" in namespace ", r.Namespace}} {
		if part.of != "" {
			text += part.before + part.of
		}
	}
	return text
}

func (f *facts) lookAtRights(ctx context.Context, r *Result) {
	lacking := map[string][]string{} // by ServiceAccount
	for _, right := range f.rights() {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:" + f.namespace + ":" + right.account,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + f.namespace, "system:authenticated"}, ResourceAttributes: &right.ResourceAttributes,
		}}
		if err := f.Client.Create(ctx, review); err != nil {
			r.skip(fmt.Errorf("asking what the operator may do: %w", err))
			break // the others would fail, too
		}
		if !review.Status.Allowed {
			lacking[right.account] = append(lacking[right.account], right.String())
		}
	}
	for _, account := range slices.Sorted(maps.Keys(lacking)) {
		r.add(Error, "ServiceAccount "+f.namespace+"/"+account, "docs/security.md#rights-of-the-operator", applyAgain+"; docs/migration.md has those of --revision-namespace", "may not %s", brief(lacking[account]))
	}
}

// rights returns what the processes need by the manifests of this version, with their flags. Of
// the names in one rule, the first stands for all. A rule has one API group.
func (in *installation) rights() (rights []right) {
	every, webhook, leader := []string{"all", "webhook", "controller"}, []string{"all", "webhook"}, []string{"all", "controller"}
	processes := map[string][]string{"sidecarset-operator": every, "sidecarset-webhook": webhook, "sidecarset-controller": leader}
	if in.flag("cert-mode", "self") == "self" {
		processes["sidecarset-certificates"], processes["sidecarset-certificates-leader"] = every, leader
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(slices.Concat(config.Roles, []byte("\n---\n"), config.CertificateRoles)), 4096)
	for {
		var role rbacv1.Role
		if decoder.Decode(&role) != nil {
			return rights // the end: the manifests are part of this program, and tested
		}
		if !strings.HasSuffix(role.Kind, "Role") {
			continue
		}
		for _, process := range processes[role.Name] {
			if account, runs := in.accounts[process]; runs {
				rights = append(rights, in.rightsOf(account, &role)...)
			}
		}
	}
}

func (in *installation) rightsOf(account string, role *rbacv1.Role) (rights []right) {
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				r := right{account, authorizationv1.ResourceAttributes{Verb: verb, Group: rule.APIGroups[0], Namespace: role.Namespace}}
				r.Resource, r.Subresource, _ = strings.Cut(resource, "/")
				if len(rule.ResourceNames) > 0 {
					r.Name = rule.ResourceNames[0]
				}
				if in.needs(&r.ResourceAttributes) {
					rights = append(rights, r)
				}
			}
		}
	}
	return rights
}

// needs fills in the names that flags change; false if the operator does not do this with its
// flags.
func (in *installation) needs(a *authorizationv1.ResourceAttributes) bool {
	if a.Namespace == "sidecarset-system" {
		a.Namespace = in.namespace
		if a.Resource == "controllerrevisions" || a.Resource == "configmaps" && a.Name != "" {
			a.Namespace = in.flag("revision-namespace", in.namespace)
		}
	}
	if a.Resource == "secrets" && a.Name != "" {
		a.Name = in.flag("cert-secret", a.Name)
	}
	isSlot := strings.HasPrefix(a.Name, "sidecarset-pods-")
	publishes := a.Verb == "patch" && !isSlot && (a.Group == "admissionregistration.k8s.io" || a.Group == "apiextensions.k8s.io")
	return !(isSlot && in.static()) && !(publishes && in.flag("cert-publish-bundle", "true") == "false")
}
