package inject

import "slices"

// keyed is a list to which an element is added if its key is free. In a list that came from
// elsewhere, a key may be present twice. A long list has a table of its keys, because the creator
// of a Pod chooses how long the list is.
type keyed struct {
	list []element
	keys map[string]int // their last places in a long list, once one has been searched
}

// find returns the place of the last element of that key; -1 if there is none.
func (k *keyed) find(key string) int {
	if k.keys == nil {
		if len(k.list) < longList {
			for i := range slices.Backward(k.list) {
				if k.list[i].key == key {
					return i
				}
			}
			return -1
		}
		k.keys = make(map[string]int, 2*len(k.list))
		for i := range k.list {
			k.keys[k.list[i].key] = i
		}
	}
	if i, ok := k.keys[key]; ok {
		return i
	}
	return -1
}

// has reports whether the list has an element of that key.
func (k *keyed) has(key string) bool { return k.find(key) >= 0 }

func (k *keyed) add(e element) {
	k.list = append(k.list, e)
	if k.keys != nil {
		k.keys[e.key] = len(k.list) - 1
	}
}

// longList is from how many elements on a list is searched by a table.
const longList = 32

// namedTables find elements of the Pod's lists, and of all sidecars, by name.
type namedTables struct{ inits, containers, volumes, sidecars map[string]int }

// find returns the place of the first element of that name; -1 if there is none. A long list gets
// a table, because users choose how long it is.
func find[T any](list []T, table *map[string]int, name string, nameOf func(*T) string) int {
	if len(list) < longList {
		for i := range list {
			if nameOf(&list[i]) == name {
				return i
			}
		}
		return -1
	}
	if *table == nil {
		*table = make(map[string]int, len(list))
		for i := range slices.Backward(list) {
			(*table)[nameOf(&list[i])] = i
		}
	}
	if i, ok := (*table)[name]; ok {
		return i
	}
	return -1
}
