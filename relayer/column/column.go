// Package column makes the arrays of which unnest makes the rows of a statement.
package column

// Of returns what of says of each element of a list, in the order of the list.
func Of[E, V any](list []E, of func(*E) V) []V {
	values := make([]V, len(list))
	for i := range list {
		values[i] = of(&list[i])
	}

	return values
}
