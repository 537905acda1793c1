// Package column builds the arrays that statements turn into rows with unnest.
package column

// Of maps the elements of a list, in order.
func Of[E, V any](list []E, of func(*E) V) []V {
	values := make([]V, len(list))
	for i := range list {
		values[i] = of(&list[i])
	}

	return values
}
