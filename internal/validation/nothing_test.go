package validation_test

import (
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/validation"
)

func TestSelectsNothing(t *testing.T) {
	const (
		pods       = "spec.selector: no Pod can be selected, because what it asks of label app contradicts itself"
		namespaces = "spec.namespaceSelector: no Namespace can be selected, because what it asks of label "
		excluded   = "spec.namespaceSelector: selects no other Namespaces than those whose Pods are never injected (kube-system, ours)"
	)
	tests := map[string]struct{ spec, want string }{
		"a label":                              {`selector: {matchLabels: {app: a}}`, ""},
		"two labels":                           {`selector: {matchLabels: {app: a, tier: b}}`, ""},
		"two lists that share a value":         {`selector: {matchExpressions: [{key: app, operator: In, values: [a, b]}, {key: app, operator: In, values: [b, c]}]}`, ""},
		"a value that is left over":            {`selector: {matchExpressions: [{key: app, operator: In, values: [a, b]}, {key: app, operator: NotIn, values: [a]}]}`, ""},
		"any value but one":                    {`selector: {matchExpressions: [{key: app, operator: Exists}, {key: app, operator: NotIn, values: [a]}]}`, ""},
		"no label, and not that value":         {`selector: {matchExpressions: [{key: app, operator: DoesNotExist}, {key: app, operator: NotIn, values: [a]}]}`, ""},
		"absence of one label, another one":    {`selector: {matchLabels: {tier: b}, matchExpressions: [{key: app, operator: DoesNotExist}]}`, ""},
		"In and NotIn of one value":            {`selector: {matchExpressions: [{key: app, operator: In, values: [a]}, {key: app, operator: NotIn, values: [a]}]}`, pods},
		"two lists that share none":            {`selector: {matchExpressions: [{key: app, operator: In, values: [a]}, {key: app, operator: In, values: [b]}]}`, pods},
		"matchLabels against In":               {`selector: {matchLabels: {app: a}, matchExpressions: [{key: app, operator: In, values: [b]}]}`, pods},
		"matchLabels against NotIn":            {`selector: {matchLabels: {app: a}, matchExpressions: [{key: app, operator: NotIn, values: [a, b]}]}`, pods},
		"matchLabels against DoesNotExist":     {`selector: {matchLabels: {app: a}, matchExpressions: [{key: app, operator: DoesNotExist}]}`, pods},
		"Exists against DoesNotExist":          {`selector: {matchExpressions: [{key: app, operator: Exists}, {key: app, operator: DoesNotExist}]}`, pods},
		"the first of two":                     {`selector: {matchLabels: {app: a, tier: b}, matchExpressions: [{key: tier, operator: DoesNotExist}, {key: app, operator: DoesNotExist}]}`, pods},
		"what cannot be compiled":              {`selector: {matchExpressions: [{key: app, operator: Is}]}`, ""},
		"all namespaces":                       {`namespaceSelector: {}`, ""},
		"a namespace":                          {`namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: web}}`, ""},
		"a namespace label":                    {`namespaceSelector: {matchLabels: {env: prod}}`, ""},
		"an excluded namespace":                {`namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}`, excluded},
		"all that are excluded":                {`namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [kube-system, ours]}]}`, excluded},
		"an excluded one among others":         {`namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [kube-system, web]}]}`, ""},
		"none but an excluded one is left":     {`namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [kube-system, web]}, {key: kubernetes.io/metadata.name, operator: NotIn, values: [web]}]}`, excluded},
		"all but the excluded ones":            {`namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, ours]}]}`, ""},
		"namespaces without a name":            {`namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: DoesNotExist}]}`, namespaces + "kubernetes.io/metadata.name contradicts itself or the fact that every Namespace has it"},
		"a namespace label against itself":     {`namespaceSelector: {matchLabels: {env: prod}, matchExpressions: [{key: env, operator: NotIn, values: [prod]}]}`, namespaces + "env contradicts itself; correct it"},
		"a label with an excluded one's value": {`namespaceSelector: {matchLabels: {name: kube-system}}`, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := validationCase{spec: tc.spec}.set(t)
			switch got := validation.SelectsNothing(&set.Spec, []string{"ours", "kube-system"}); {
			case (got == "") != (tc.want == "") || !strings.HasPrefix(got, tc.want):
				t.Errorf("got %q, want %q", got, tc.want)
			case got != "" && !strings.Contains(got, "; "):
				t.Errorf("%q names no remedy", got)
			}
		})
	}
}

func TestSelectsNothingCountsEveryNamespaceIfNoneIsExcluded(t *testing.T) {
	set := validationCase{spec: `namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}`}.set(t)
	if got := validation.SelectsNothing(&set.Spec, nil); got != "" {
		t.Errorf("got %q", got)
	}
}
