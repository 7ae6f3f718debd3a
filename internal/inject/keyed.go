package inject

// manyCompared is how many keys are compared one by one, for all searches in one list
// together, before a table of them is made. Ordinary Pods stay below.
const manyCompared = 4096

// keyed is a list to which an element is added if its key is free. In a list that came from
// elsewhere, a key may be present twice. The cost of a search does not grow with the list,
// because the author of a Pod chooses how long the list is.
type keyed struct {
	list     []element
	compared int
	keys     map[string]int // their last places, once many have been compared
}

// find returns the place of the last element of that key; -1 if there is none.
func (k *keyed) find(key string) int {
	if k.keys == nil {
		if k.compared += len(k.list); k.compared <= manyCompared {
			for i := len(k.list) - 1; i >= 0; i-- {
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
