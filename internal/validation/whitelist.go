package validation

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// The place where administrators list the annotations that patchPodMetadata may set.
const (
	WhitelistConfigMap = "kruise-configuration"
	WhitelistKey       = "SidecarSet_PatchPodMetadata_WhiteList"
)

// Whitelist is the content of WhitelistKey in WhitelistConfigMap.
type Whitelist struct {
	// Namespace is where the ConfigMap is, or has to be.
	Namespace string
	// Content is what it holds; "" if there is no such ConfigMap or key.
	Content string
	// AllowedByDefault allows every annotation if no rule has an expression for a SidecarSet,
	// like OpenKruise's gate SidecarSetPatchPodMetadataDefaultsAllowed.
	AllowedByDefault bool
}

type whitelistRules struct {
	Rules []struct {
		Selector                  *metav1.LabelSelector `json:"selector"`
		AllowedAnnotationKeyExprs []string              `json:"allowedAnnotationKeyExprs"`
	} `json:"rules"`
}

// validateWhitelisted checks patchPodMetadata against the administrator's rules.
func validateWhitelisted(set *appsv1beta1.SidecarSet, whitelist Whitelist, path place) {
	if len(set.Spec.PatchPodMetadata) == 0 {
		return
	}
	expressions, err := whitelist.expressions(labels.Set(set.Labels))
	if err != nil {
		path.forbidden(fmt.Sprintf("the whitelist cannot be used: %v; an administrator has to correct %s", err, whitelist.place()))
		return
	}
	if len(expressions) == 0 {
		if !whitelist.AllowedByDefault {
			path.forbidden("whitelist not found: no rule applies to this SidecarSet; " + whitelist.remedy())
		}
		return
	}
	for i := range set.Spec.PatchPodMetadata {
		for _, key := range slices.Sorted(maps.Keys(set.Spec.PatchPodMetadata[i].Annotations)) {
			matches := func(e *regexp.Regexp) bool { return e.MatchString(key) }
			if !slices.ContainsFunc(expressions, matches) {
				path.Index(i).Child("annotations").Key(key).forbidden("no rule of the whitelist allows this annotation; " + whitelist.remedy())
			}
		}
	}
}

// expressions are those of all rules that apply to a SidecarSet with these labels.
func (w Whitelist) expressions(set labels.Set) ([]*regexp.Regexp, error) {
	if w.Content == "" {
		return nil, nil
	}
	var list whitelistRules
	if err := json.Unmarshal([]byte(w.Content), &list); err != nil {
		return nil, fmt.Errorf("reading it as JSON: %w", err)
	}
	var expressions []*regexp.Regexp
	for i, rule := range list.Rules {
		selector, err := metav1.LabelSelectorAsSelector(rule.Selector)
		if err != nil {
			return nil, fmt.Errorf("rules[%d].selector: %w", i, err)
		}
		if rule.Selector != nil && !selector.Matches(set) {
			continue
		}
		for _, text := range rule.AllowedAnnotationKeyExprs {
			expression, err := regexp.Compile(text)
			if err != nil {
				return nil, fmt.Errorf("rules[%d].allowedAnnotationKeyExprs: %w", i, err)
			}
			expressions = append(expressions, expression)
		}
	}
	return expressions, nil
}

func (w Whitelist) remedy() string { return "ask an administrator to add one to " + w.place() }

func (w Whitelist) place() string {
	return fmt.Sprintf("key %s of ConfigMap %s/%s", WhitelistKey, w.Namespace, WhitelistConfigMap)
}
