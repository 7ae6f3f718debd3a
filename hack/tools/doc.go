// Package tools pins the generators and linters that make uses, as tool lines of
// go.mod. They are a module of their own so that the operator's stays small.
package tools
