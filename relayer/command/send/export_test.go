package send

import "context"

// Run is the work of an owner, without what makes it one.
func Run(ctx context.Context, cfg Config, wake <-chan struct{}) error {
	cfg.setDefaults()
	return cfg.run(ctx, wake)
}
