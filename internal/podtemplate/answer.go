package podtemplate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sidecarset/operator/internal/members"
)

// Verdict is what an API server says about a SidecarSet, at the paths of the SidecarSet.
type Verdict struct {
	// Refused is why API servers refuse each Pod with the sidecars.
	Refused field.ErrorList
	// Warnings are lines that begin with a path.
	Warnings []string
}

// root is in front of the paths of a PodTemplate that are those of the SidecarSet.
const root = "template."

// Read returns the verdict about q. answer is the body of the response, warnings are its
// warnings, and cause is nil if the API server has accepted the question. Read returns an error
// if the answer is no verdict: a policy, a webhook, a quota or the network has answered instead.
func (q Question) Read(answer []byte, warnings []string, cause error) (Verdict, error) {
	var v Verdict
	if cause != nil {
		return q.readRefusal(cause)
	}
	var created struct {
		Template struct {
			Spec map[string]any `json:"spec"`
		} `json:"template"`
	}
	if err := json.Unmarshal(answer, &created); err != nil {
		return v, fmt.Errorf("reading the answer of the API server: %w", err)
	}
	v.Warnings = q.readWarnings(created.Template.Spec, warnings)
	return v, nil
}

// readRefusal reads an answer of status 422. A policy or a webhook may have that status too,
// but has no causes at paths of the template.
func (q Question) readRefusal(cause error) (v Verdict, err error) {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(cause) || !errors.As(cause, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return v, cause
	}
	causes := status.Status().Details.Causes
	for _, c := range causes {
		if !strings.HasPrefix(c.Field, root) {
			return v, cause
		}
	}
	for _, c := range causes {
		path := strings.TrimPrefix(c.Field, root)
		owner, isOurs := q.ownerOf(path)
		if !isOurs {
			v.Warnings = append(v.Warnings, fmt.Sprintf("spec: API servers refuse a Pod with these sidecars unless its own %s is right (%s); select only Pods for which it is", path, c.Message))
			continue
		}
		if !q.asks(c) {
			return Verdict{}, fmt.Errorf("another program has changed the question: %w", cause)
		}
		v.Refused = append(v.Refused, asError(c, path, owner))
	}
	return v, nil
}

// asks reports whether the value that is refused may come from the question. A policy or a webhook
// for PodTemplates may have set another one, which the creator did not write: a text that is
// nowhere in the question. Quantities do not count, since API servers spell them again.
func (q Question) asks(cause metav1.StatusCause) bool {
	kind := field.ErrorType(cause.Type)
	if kind != field.ErrorTypeInvalid && kind != field.ErrorTypeNotSupported {
		return true
	}
	quoted, err := strconv.QuotedPrefix(strings.TrimPrefix(cause.Message, kind.String()+": "))
	if err != nil {
		return true // no text
	}
	text, _ := strconv.Unquote(quoted)
	if _, err := resource.ParseQuantity(text); err == nil || text == "" {
		return true
	}
	return hasText(q.spec, text)
}

// hasText reports whether a JSON value has a text, as a part of a string or of a name: API servers
// may name the wrong part of a value only.
func hasText(value any, text string) bool {
	switch value := value.(type) {
	case string:
		return strings.Contains(value, text)
	case []any:
		return slices.ContainsFunc(value, func(element any) bool { return hasText(element, text) })
	case map[string]any:
		for name, member := range value {
			if strings.Contains(name, text) || hasText(member, text) {
				return true
			}
		}
	}
	return false
}

// asError is a cause as an error that has the same text, with the owner and the remedy added.
func asError(c metav1.StatusCause, path, owner string) *field.Error {
	kind := field.ErrorType(c.Type)
	detail := strings.TrimPrefix(strings.TrimPrefix(c.Message, kind.String()), ": ")
	if remedy := remedyFor(kind, path, detail); remedy != "" {
		detail = strings.TrimPrefix(detail+"; "+remedy, "; ")
	}
	if owner != "" {
		detail += " (" + owner + ")"
	}
	return &field.Error{Type: kind, Field: path, BadValue: field.OmitValueType{}, Detail: detail}
}

// remedies are what to do about faults whose text does not say it, by the end of the path and a
// part of the text.
var remedies = []struct {
	path   *regexp.Regexp
	kind   field.ErrorType // "" is any
	text   string
	remedy string
}{
	{regexp.MustCompile(`\.(volumeMounts|volumeDevices)\[\d+\]\.name$`), field.ErrorTypeNotFound, "", "declare it in spec.volumes"},
	{regexp.MustCompile(`\.hostPort$`), field.ErrorTypeDuplicate, "", "only one container can have a port of the node; use another one, or remove it"},
	{regexp.MustCompile(`\.requests(\[.+\])?$`), field.ErrorTypeInvalid, "less than or equal to", "raise the limit, or lower the request"},
	{regexp.MustCompile(`\.fileKeyRef\.volumeName$`), "", "", "name an emptyDir volume of spec.volumes"},
	{regexp.MustCompile(``), field.ErrorTypeRequired, "", "set it"},
	{regexp.MustCompile(``), field.ErrorTypeForbidden, "", "remove it"},
	{regexp.MustCompile(``), field.ErrorTypeDuplicate, "", "rename or remove one"},
}

func remedyFor(kind field.ErrorType, path, detail string) string {
	for _, r := range remedies {
		if (r.kind == "" || r.kind == kind) && r.path.MatchString(path) && strings.Contains(detail, r.text) {
			return r.remedy
		}
	}
	return ""
}

var element = regexp.MustCompile(`^spec\.(` + strings.Join(members.OfPods(), "|") + `)\[(\d+)\]`)

// ownerOf says in words which container or volume a path belongs to; "" if it has no name. It
// reports false for a path of what the Pod brings.
func (q Question) ownerOf(path string) (owner string, isOurs bool) {
	found := element.FindStringSubmatch(path)
	if found == nil {
		return "", false
	}
	list, _ := q.spec[found[1]].([]any)
	i, err := strconv.Atoi(found[2])
	if err != nil || i >= len(list) || found[1] == "containers" && len(q.set.Spec.Containers) == 0 { // the placeholder
		return "", false
	}
	object, _ := list[i].(map[string]any)
	name, _ := object["name"].(string)
	if name == "" {
		return "", true
	}
	return members.Element(found[1]) + " " + name, true
}

// mostUnknown is how many members are named that do not reach Pods.
const mostUnknown = 10

var unknownField = regexp.MustCompile(`^unknown field "template\.(.+)"$`)

// readWarnings returns the API server's warnings, and the members that it has dropped. Those
// that it does not know are in its warnings, but not all: its decoder names the first hundred
// only, and long warnings are cut. Those of a feature that is switched off are in none.
// Therefore the answer is compared with the question. Warnings of other programs, such as Pod
// Security, are left out.
func (q Question) readWarnings(answered map[string]any, warnings []string) []string {
	var lines []string
	unknown := map[string]bool{}
	isCut := false
	for _, text := range warnings {
		switch path, isOfTemplate := strings.CutPrefix(text, root); {
		case isOfTemplate:
			if _, isOurs := q.ownerOf(path); isOurs {
				lines = append(lines, strings.ReplaceAll(path, root, ""))
			}
		case unknownField.MatchString(text):
			unknown[unknownField.FindStringSubmatch(text)[1]] = true
		default:
			isCut = isCut || strings.HasPrefix(text, "unknown field ")
		}
	}
	dropped := map[string]bool{}
	for _, list := range members.OfPods() {
		findDropped(q.spec[list], answered[list], field.NewPath("spec", list), dropped)
	}
	maps.Copy(dropped, unknown)
	for _, n := range q.needs {
		if !isWithin(n.path, dropped) { // a member that is dropped needs nothing
			lines = append(lines, n.path+": "+n.warning)
		}
	}
	const mostDecoded = 100 // after so many the API server's decoder reports no more
	isCut = isCut || len(unknown) >= mostDecoded
	paths := slices.Sorted(maps.Keys(dropped))
	for _, path := range paths[:min(len(paths), mostUnknown)] {
		reason := "is dropped from Pods by this API server, because the feature that has it is switched off; remove it, or have the feature gate switched on"
		switch {
		case unknown[path]:
			reason = "is unknown to this API server, which drops it from Pods; correct or remove it"
		case isCut:
			reason = "is dropped from Pods by this API server; correct or remove it"
		}
		lines = append(lines, path+": "+reason)
	}
	if more := len(paths) - mostUnknown; more > 0 {
		lines = append(lines, fmt.Sprintf("spec: the API server drops %d more members of containers and volumes from Pods; correct or remove them", more))
	}
	return lines
}

// isWithin reports whether a path, or one that it continues, is among paths.
func isWithin(path string, paths map[string]bool) bool {
	for path != "" && !paths[path] {
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return path != ""
}

// findDropped adds the paths of the members that are asked and not answered. It compares which
// members are present, never their values: the answer leaves out zeros and empty values, and
// spells quantities again.
func findDropped(asked, answered any, path *field.Path, dropped map[string]bool) {
	switch asked := asked.(type) {
	case []any:
		answered, _ := answered.([]any)
		for i := range min(len(asked), len(answered)) {
			findDropped(asked[i], answered[i], path.Index(i), dropped)
		}
	case map[string]any:
		answered, _ := answered.(map[string]any)
		for name, value := range asked {
			switch got, has := answered[name]; {
			case isEmpty(value):
			case has:
				findDropped(value, got, path.Child(name), dropped)
			default:
				dropped[path.Child(name).String()] = true
			}
		}
	}
}

// isEmpty reports whether a value may be left out when it is written again.
func isEmpty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case bool:
		return !value
	case string:
		return value == ""
	case int64:
		return value == 0
	case float64:
		return value == 0
	case []any:
		return len(value) == 0
	case map[string]any:
		for _, member := range value {
			if !isEmpty(member) {
				return false
			}
		}
		return true
	}
	return false
}
