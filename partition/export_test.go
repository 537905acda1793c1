package partition

import "context"

// Step is one turn of Run.
func (c *Claimer) Step(ctx context.Context) error {
	_, err := c.step(ctx)
	return err
}
