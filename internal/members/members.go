// Package members knows which members of a SidecarSet's spec Pods get, and how each is treated.
// It is the only list of them: whatever handles all of them reads it.
package members

// Member is a member of the spec of a SidecarSet that Pods get. Its value is a list.
type Member struct {
	Name string
	Kind Kind
	// Element is what messages call an element of the list.
	Element string
	// Null: a revision records null where the SidecarSet does not have the member, as
	// OpenKruise does. Only members that OpenKruise records may have this. Others are recorded
	// only where a SidecarSet has them: so all other SidecarSets keep their revisions.
	Null bool
	// Outdates is when a change makes Pods outdated: the hash covers the member.
	// OpenKruise computes the same hash, so a member that it does not know is Never.
	Outdates Outdates
}

// Kind is what the elements of a list are.
type Kind int

// The kinds of lists.
const (
	// Containers of Pods with the rules of their injection. API servers check them in a dry run
	// without those rules.
	Containers Kind = iota
	// Objects that Pods have as they are. API servers check them in a dry run.
	Objects
	// Metadata are rules for the metadata of Pods, whose spec has no such member.
	Metadata
)

// Outdates is when a change of a member makes Pods outdated.
type Outdates int

// The values of Outdates.
const (
	Never Outdates = iota
	// WithNative: if the SidecarSet has a native sidecar, before or after the change.
	WithNative
	Always
)

// Injected are the members that Pods get. Read it, never change it.
var Injected = []Member{
	{Name: "containers", Kind: Containers, Element: "container", Null: true, Outdates: Always},
	{Name: "initContainers", Kind: Containers, Element: "container", Null: true, Outdates: WithNative},
	{Name: "volumes", Kind: Objects, Element: "volume", Null: true},
	{Name: "imagePullSecrets", Kind: Objects, Element: "pull secret", Null: true},
	{Name: "patchPodMetadata", Kind: Metadata, Element: "entry", Null: true},
}

// OfPods returns the names of those that the spec of a Pod has too.
func OfPods() (names []string) {
	for _, m := range Injected {
		if m.Kind != Metadata {
			names = append(names, m.Name)
		}
	}
	return names
}

// Element is what messages call an element of a list; "" for a list that Pods do not get.
func Element(list string) string {
	for _, m := range Injected {
		if m.Name == list {
			return m.Element
		}
	}
	return ""
}
