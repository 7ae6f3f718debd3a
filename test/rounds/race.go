//go:build race

package rounds

const race = true
