package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/deploy"
)

// right is a verb on a resource, as a rule of a role grants it.
type right struct {
	role      string // "ClusterRole name", or "Role namespace/name"
	namespace string // where the right holds; "" is everywhere
	group     string
	resource  string // with the subresource
	verb      string
	names     string // the names to which the rule restricts it; "" is no restriction
}

func (r right) String() string {
	text := strings.TrimSuffix(fmt.Sprintf("%s: %s %s.%s", r.role, r.verb, r.resource, r.group), ".")
	if r.names != "" {
		text += " named " + r.names
	}
	return text
}

// request is what an audit log says about a request of one of the operator's ServiceAccounts
// for a resource.
type request struct {
	account, verb, group, resource, namespace, name string

	denied bool
	uri    string
}

// covers says whether the request was allowed by the right.
func (r right) covers(q request) bool {
	return r.verb == q.verb && r.group == q.group && r.resource == q.resource && (r.namespace == "" || r.namespace == q.namespace) &&
		(r.names == "" || q.name != "" && slices.Contains(strings.Split(r.names, " "), q.name))
}

// requestsOf reads an audit log and returns each kind of request of the operator once.
func requestsOf(t *testing.T, i *installation) []request {
	t.Helper()
	file, err := os.Open(i.auditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Seek(i.logged, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	seen := map[request]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb, RequestURI string
			User             struct{ Username string }
			ObjectRef        *struct{ APIGroup, Resource, Subresource, Namespace, Name string }
			Annotations      map[string]string
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			continue // a line that is being written
		}
		account, ours := strings.CutPrefix(event.User.Username, "system:serviceaccount:"+deploy.Namespace+":")
		if !ours || event.ObjectRef == nil {
			continue // every account may use discovery
		}
		o := event.ObjectRef
		q := request{
			account: account, verb: event.Verb, group: o.APIGroup, resource: o.Resource, namespace: o.Namespace, name: o.Name,
			denied: event.Annotations["authorization.k8s.io/decision"] != "allow",
		}
		if o.Subresource != "" {
			q.resource += "/" + o.Subresource
		}
		if q.denied {
			q.uri = event.RequestURI
		}
		seen[q] = true
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return slices.Collect(maps.Keys(seen))
}

// rightsOf returns the rights that the operator's ServiceAccounts have been granted.
func rightsOf(t *testing.T, i *installation) map[string][]right {
	t.Helper()
	granted := map[string][]right{}
	var clusterBindings rbacv1.ClusterRoleBindingList
	var bindings rbacv1.RoleBindingList
	for _, list := range []client.ObjectList{&clusterBindings, &bindings} {
		if err := i.api.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	add := func(namespace string, subjects []rbacv1.Subject, ref rbacv1.RoleRef) {
		for _, subject := range subjects {
			if subject.Kind == rbacv1.ServiceAccountKind && subject.Namespace == deploy.Namespace {
				granted[subject.Name] = append(granted[subject.Name], rightsIn(t, i, namespace, ref)...)
			}
		}
	}
	for _, b := range clusterBindings.Items {
		add("", b.Subjects, b.RoleRef)
	}
	for _, b := range bindings.Items {
		add(b.Namespace, b.Subjects, b.RoleRef)
	}
	return granted
}

// rightsIn returns the rights in the role to which a binding in a namespace refers.
func rightsIn(t *testing.T, i *installation, namespace string, ref rbacv1.RoleRef) []right {
	t.Helper()
	name := ref.Kind + " " + ref.Name
	var rules []rbacv1.PolicyRule
	if ref.Kind == "ClusterRole" {
		var role rbacv1.ClusterRole
		if err := i.api.Get(t.Context(), client.ObjectKey{Name: ref.Name}, &role); err != nil {
			t.Fatal(err)
		}
		rules = role.Rules
	} else {
		var role rbacv1.Role
		if err := i.api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: ref.Name}, &role); err != nil {
			t.Fatal(err)
		}
		rules = role.Rules
		name = ref.Kind + " " + namespace + "/" + ref.Name
	}
	var rights []right
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					rights = append(rights, right{role: name, namespace: namespace, group: group, resource: resource, verb: verb, names: strings.Join(rule.ResourceNames, " ")})
				}
			}
		}
		if len(rule.NonResourceURLs) > 0 {
			t.Errorf("%s allows URLs: %v", name, rule.NonResourceURLs)
		}
	}
	return rights
}

// rare are rights that are needed only in cases which the scenario cannot cause. The key is
// the resource, the verb and, where it matters, the first name. The value is the reason why
// the right is granted all the same.
var rare = map[string]string{
	"sidecarsets/finalizers update": "asked for by the admission plugin OwnerReferencesPermissionEnforcement, which few clusters run, when a ControllerRevision is created with blockOwnerDeletion; " +
		"a plugin's question is not audited",
	"controllerrevisions get":              "for a name that is taken: by a leader that lost its lease a moment ago, or by another content with the same hash",
	"events patch":                         "for an event that happens again within minutes",
	"namespaces list":                      "informers list where the API server has no WatchList, or refuses it",
	"mutatingwebhookconfigurations list":   "as for namespaces",
	"validatingwebhookconfigurations list": "as for namespaces",
	"customresourcedefinitions list":       "as for namespaces",
	"nodes list":                           "as for pods",
	"pods list":                            "the Pod watch begins with a list where the API server has no WatchList, or refuses it",
	"mutatingwebhookconfigurations get sidecarset-pods-0": "for entries that another client wrote at the same moment",
	"endpointslices list": "those of the operator's own Service: by a leader that serves no webhooks itself, to see whether a replica does",
}

// isRare says whether a right is one of rare, and by which key.
func (r right) isRare() (key string, yes bool) {
	text := strings.Join([]string{r.resource, r.verb, r.names, ""}, " ")
	for key := range rare {
		if strings.HasPrefix(text, key+" ") {
			return key, true
		}
	}
	return "", false
}

// unused returns the rights that no request needed, without the rare ones.
func unused(granted map[string][]right, requests []request) []string {
	used := map[right]bool{}
	for _, rights := range granted {
		for _, r := range rights {
			used[r] = false
		}
	}
	for _, q := range requests {
		for _, r := range granted[q.account] {
			used[r] = used[r] || !q.denied && r.covers(q)
		}
	}
	var idle []string
	for r, isUsed := range used {
		if _, isRare := r.isRare(); !isUsed && !isRare {
			idle = append(idle, r.String())
		}
	}
	slices.Sort(idle)
	return idle
}

// checkRare fails the test if no account has one of the rare rights.
func checkRare(t *testing.T, granted map[string][]right) {
	t.Helper()
	listed := map[string]bool{}
	for _, rights := range granted {
		for _, r := range rights {
			if key, isRare := r.isRare(); isRare {
				listed[key] = true
			}
		}
	}
	for key := range rare {
		if !listed[key] {
			t.Errorf("no account may %q: take it off the list of rare rights", key)
		}
	}
}
